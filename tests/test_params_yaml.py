"""params.yaml holds every parameter with a word on it, and the editors' schema follows the typed params."""

import json

import jsonschema
import pytest
from params_schema import PARAMS_YAML, SCHEMA, comments, schema_text

from pipeline.core.params import Params, load_params, read_yaml

TEXT = PARAMS_YAML.read_text(encoding="utf-8")


def test_params_yaml_is_valid_and_holds_every_key():
    load_params(PARAMS_YAML)
    data = read_yaml(TEXT, "params.yaml")
    for section, field in Params.model_fields.items():
        assert list(data[section]) == list(field.annotation.model_fields), section


def test_every_key_has_a_comment():
    keys = {f"{section}.{key}" for section, field in Params.model_fields.items() for key in field.annotation.model_fields}
    assert set(comments()) == keys


def test_the_checked_in_schema_is_current():
    assert SCHEMA.read_text(encoding="utf-8") == schema_text(), "run: python -m tests.params_schema --write"
    assert TEXT.startswith("# yaml-language-server: $schema=docs/params.schema.json\n")


def test_the_schema_accepts_params_yaml_and_refuses_what_the_params_refuse():
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    data = read_yaml(TEXT, "params.yaml")
    jsonschema.validate(data, schema)
    for section, key, value in [("generate", "temperature", -1), ("generate", "temprature", 1), ("data", "format", "xml")]:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**data, section: {**data[section], key: value}}, schema)
