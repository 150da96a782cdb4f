"""One fixed Arrow schema per table, the same for empty, all-null and full parts, with a sentence per field.

`ordinal` is the order of arrival over all inputs, from 0; it joins every table. Rejected rows have one too.
"""

from __future__ import annotations

import pyarrow as pa


def _schema(*fields: tuple[str, pa.DataType, str]) -> pa.Schema:
    return pa.schema([pa.field(name, kind, metadata={"description": text}) for name, kind, text in fields])


TOKEN_IDS = pa.list_(pa.int32())
TOP_LOGPROBS = pa.list_(pa.list_(pa.struct([("token_id", pa.int32()), ("logprob", pa.float32())])))

VALIDATED = _schema(
    ("ordinal", pa.int64(), "order of arrival over all inputs, from 0; joins all tables"),
    ("id", pa.string(), "the row's own id digit for digit, or file:line"),
    ("source_file", pa.string(), "input file, relative to the root where it lies below it"),
    ("source_line", pa.int64(), "line the row starts on, from 1; the row number in Parquet and JSON arrays"),
    ("control", pa.bool_(), "true for rows of data.control: scored for the gate, kept out of the results"),
    ("text", pa.string(), "the text field; null where messages are given"),
    ("messages", pa.string(), "JSON array of {role, content}; null where text is given"),
    ("completion", pa.string(), "answer made elsewhere (data.completion_field), else null"),
    ("reference", pa.string(), "JSON array of reference texts, null when there is none"),
    ("meta", pa.string(), "JSON object of every other field"),
    ("overrides", pa.string(), "JSON object of the generation values this row sets, {} for none"),
)

REJECTED = _schema(
    ("ordinal", pa.int64(), "order of arrival over all inputs, from 0"),
    ("id", pa.string(), "the row's id where it could be read"),
    ("source_file", pa.string(), "input file"),
    ("source_line", pa.int64(), "line the row starts on, from 1"),
    ("control", pa.bool_(), "true for rows of data.control"),
    ("stage", pa.string(), "validate, preprocess or bucket"),
    ("reason", pa.string(), "reason code"),
    ("detail", pa.string(), "what was found, the limit and the way out"),
)

CLEAN = _schema(
    ("ordinal", pa.int64(), "joins all tables"),
    ("text", pa.string(), "cleaned text; null where messages are given"),
    ("messages", pa.string(), "JSON array of {role, content}, cleaned; null where text is given"),
    ("language", pa.string(), "ISO 639-1 code of the text, und when unsure"),
    ("steps_applied", pa.list_(pa.string()), "cleaning steps that changed this row, in order"),
    ("chars_in", pa.int64(), "characters before cleaning"),
    ("chars_out", pa.int64(), "characters after cleaning"),
)

PROMPTS = _schema(
    ("ordinal", pa.int64(), "joins all tables"),
    ("prompt", pa.string(), "the text the model sees"),
    ("token_ids", TOKEN_IDS, "its token ids"),
    ("prompt_tokens", pa.int32(), "length of token_ids"),
    ("bucket", pa.int32(), "upper bound of the row's length bucket, prompt tokens"),
    ("position", pa.int64(), "place in the order of generation, from 0"),
    ("truncated_tokens", pa.int32(), "tokens cut by prompt.on_too_long"),
    ("escaped_tokens", pa.int32(), "control-token strings in the row's text that were encoded as plain text"),
    ("overrides", pa.string(), "JSON object of the generation values this row sets, {} for none"),
)

COMPLETIONS = _schema(
    ("ordinal", pa.int64(), "joins all tables"),
    ("sample", pa.int32(), "sample number, from 0"),
    ("text", pa.string(), "the answer, cut at a stop string; null when failed"),
    ("token_ids", TOKEN_IDS, "generated token ids, the stop token included"),
    ("finish_reason", pa.string(), "stop, length or error"),
    ("finish_detail", pa.string(), "the stop string or stop token id; incomplete_character when a cut tail was dropped"),
    ("completion_tokens", pa.int32(), "length of token_ids"),
    ("token_logprobs", pa.list_(pa.float32()), "natural log probability of each generated token"),
    ("logprob_mean", pa.float64(), "mean of token_logprobs"),
    ("logprob_min", pa.float64(), "minimum of token_logprobs"),
    ("top_logprobs", TOP_LOGPROBS, "alternatives per token when generate.logprobs asks for them, else null"),
    ("error", pa.string(), "code: detail of a failed row, else null"),
)

SCORES = _schema(
    ("ordinal", pa.int64(), "joins all tables"),
    ("sample", pa.int32(), "sample number, from 0"),
    ("metric", pa.string(), "name of the metric"),
    ("value", pa.float64(), "0 to 1, bleu and chrf 0 to 100; null where the metric does not apply"),
    ("extracted", pa.string(), "the part of the answer that was scored"),
)

BAD_CASES = _schema(
    ("ordinal", pa.int64(), "joins all tables"),
    ("sample", pa.int32(), "sample number, from 0"),
    ("rule", pa.string(), "the rule that found it"),
    ("cause", pa.string(), "data, prompt, model or system"),
    ("severity", pa.float64(), "0 to 1, higher is worse"),
    ("evidence", pa.string(), "what the rule saw: numbers, codes and places, never the row's text"),
    ("reason", pa.string(), "why this cause was chosen"),
    ("state", pa.string(), "new or still, against the accepted run; null where that says nothing of the row"),
    ("cluster", pa.int32(), "number of the group of similar failures, null for none"),
    ("rank", pa.int32(), "place in the report, from 1"),
)

# The results table has a float64 column per metric between `reference` and `meta`.
RESULTS_HEAD = _schema(
    ("ordinal", pa.int64(), "order of arrival over all inputs, from 0"),
    ("id", pa.string(), "the row's own id, or file:line; null when it could not be read"),
    ("source_file", pa.string(), "input file"),
    ("source_line", pa.int64(), "line the row starts on, from 1"),
    ("sample", pa.int32(), "sample number, from 0"),
    ("status", pa.string(), "answered, rejected or failed"),
    ("reason", pa.string(), "why a row was rejected or failed (code: detail)"),
    ("prompt", pa.string(), "the text the model saw"),
    ("completion", pa.string(), "the answer"),
    ("extracted", pa.string(), "the part of the answer that was scored"),
    ("finish_reason", pa.string(), "stop, length or error"),
    ("prompt_tokens", pa.int32(), "tokens of the prompt"),
    ("completion_tokens", pa.int32(), "tokens of the answer"),
    ("logprob_mean", pa.float64(), "mean natural log probability of the answer's tokens"),
    ("logprob_min", pa.float64(), "minimum natural log probability of the answer's tokens"),
    ("reference", pa.string(), "JSON array of reference texts"),
)
META = pa.field("meta", pa.string(), metadata={"description": "JSON object of the row's other fields"})


def results_schema(metrics: list[str]) -> pa.Schema:
    """Schema of the results table with one nullable float64 column per metric, in the order given."""
    columns = [pa.field(name, pa.float64(), metadata={"description": f"metric {name}"}) for name in metrics]
    return pa.schema([*RESULTS_HEAD, *columns, META])
