"""XNNPACK's own passes over a part of a program, without those that would change nothing there.

ExecuTorch hands XNNPACK a program in dozens of parts and runs all seventeen passes over each; every one traces the part again, and that
was half of an export's time. Most look for operators that a part does not have.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

LOOKS_FOR = {
    "XNNPACKRemoveCloneOpsTransform": {"clone", "_clone_dim_order"},
    "DimOrderOpsRevertPass": {"_clone_dim_order", "_to_dim_order_copy"},
    "ConvertToUpsampleBilinear2d": {"_unsafe_index", "index"},
    "ConvertToLinearPass": {"mm", "addmm", "linear"},
    "PropagateCustomMetaPass": set(),
    "ConvertToSDPAPass": {"where"},
    "FuseBatchNormPass": {"native_batch_norm", "_native_batch_norm_legit_no_training"},
    "DecomposeBatchNorm": {"native_batch_norm", "_native_batch_norm_legit_no_training"},
    "FuseActivationPass": {"relu", "hardtanh"},
    "DecomposeConcatenate": {"cat"},
    "RemoveGetItemPass": {"max_pool2d_with_indices", "max"},
    "InsertPadQDQPass": set(),
    "Conv1dUnsqueezePass": {"convolution"},
    "PReLUReshapePass": {"_prelu_kernel", "prelu"},
    "ChannelsLastTaggedReshapePass": {"convolution", "upsample_bilinear2d", "mean", "max_pool2d_with_indices", "max_pool2d", "amax", "max", "avg_pool2d", "prelu", "_prelu_kernel"},
    "RemoveRedundantCopyPass": {"_to_copy", "_to_dim_order_copy"},
}  # fmt: skip
"""By the name of a pass, the operators that it begins with; those for quantised operators begin with none, for there are none here. A
pass that is not named here is always run."""


@contextmanager
def needed_passes_only() -> Iterator[None]:
    """Within, XNNPACK runs over each part the passes that find one of their operators there, in their own order."""
    from executorch.backends.xnnpack import xnnpack_preprocess

    every = xnnpack_preprocess.XNNPACKPassManager

    class Needed(every):  # type: ignore[misc, valid-type]
        def __init__(self, exported_program: torch.export.ExportedProgram, passes: list[type] | None = None) -> None:
            super().__init__(exported_program, passes)
            if not passes:
                self.passes = [one for one in self.passes if _is_needed(one.__name__, exported_program.graph)]

    xnnpack_preprocess.XNNPACKPassManager = Needed
    try:
        yield
    finally:
        xnnpack_preprocess.XNNPACKPassManager = every


def _is_needed(name: str, graph: torch.fx.Graph) -> bool:
    nodes: list[Any] = [node for node in graph.nodes if node.op == "call_function"]
    if name == "ConstPropPass":  # it computes what depends on no input
        return any(not node.all_input_nodes for node in nodes)
    found = {node.target.__name__.removeprefix("aten.").split(".")[0] for node in nodes}
    found |= {node.target.__name__.split(".")[-2] for node in nodes if "." in node.target.__name__}
    return name not in LOOKS_FOR or bool(found & LOOKS_FOR[name])
