"""Functions of named tensors, traced into graphs: what of their inputs they read."""

from collections.abc import Sequence

from torch.fx import GraphModule


def drop_unread(traced: GraphModule, names: Sequence[str]) -> list[str]:
    """Remove the inputs that nothing reads; the names of the others. `names` are those of all
    inputs, in their order."""
    traced.graph.eliminate_dead_code()
    read = []
    for name, node in zip(
        names, [n for n in traced.graph.nodes if n.op == "placeholder"], strict=True
    ):
        if node.users:
            read.append(name)
        else:
            traced.graph.erase_node(node)
    traced.recompile()
    return read
