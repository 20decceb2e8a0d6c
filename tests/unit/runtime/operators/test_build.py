"""Every node of the plan has exactly one operator, or is the engine's own work."""

import pytest

from kafka_eos import Bug, plan
from kafka_eos.runtime.operators import build_operator
from kafka_eos.testing import ListSource, MemorySink

HERE = plan.CodeLocation("here.py", 1, "")


@pytest.mark.parametrize(
    "node",
    [
        plan.SourceNode(name="s", code_line=HERE, source=ListSource([])),
        plan.UnionNode(name="u", code_line=HERE, inputs=("a", "b")),
        plan.SinkNode(name="k", code_line=HERE, inputs=("a",), sink=MemorySink()),
    ],
    ids=lambda node: node.kind,
)
def test_the_engines_own_nodes_have_no_operator(node: plan.Node) -> None:
    with pytest.raises(Bug, match=f"kind '{node.kind}' has no operator"):
        build_operator(node)
