"""Length buckets and the order of generation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.params import BucketParams
from pipeline.engine.buckets import plan


@given(st.lists(st.integers(1, 3000), max_size=200), st.sampled_from(["auto", (64,), (8, 100, 900)]), st.sampled_from([1, 8, 64]))
def test_every_row_has_the_smallest_edge_that_holds_it_and_a_place_of_its_own(lengths, edges, multiple):
    found, bucket, position = plan(np.array(lengths, np.int64), BucketParams(edges=edges, pad_multiple=multiple))
    assert found == sorted(set(found)) and all(edge % multiple == 0 for edge in found)
    assert sorted(position.tolist()) == list(range(len(lengths)))
    assert all(b == min(e for e in found if e >= n) for n, b in zip(lengths, bucket.tolist()))
    ordered = np.array(lengths)[np.argsort(position)]
    assert all(ordered[:-1] >= ordered[1:])


def test_equal_lengths_keep_their_order_of_arrival():
    assert plan(np.array([5, 9, 5, 9]), BucketParams())[2].tolist() == [2, 0, 3, 1]


@pytest.mark.parametrize(("edges", "expected"), [("auto", [56, 96, 104]), ((10, 30), [16, 32, 104])])
def test_edges(edges, expected):
    assert plan(np.arange(1, 101), BucketParams(edges=edges))[0] == expected
