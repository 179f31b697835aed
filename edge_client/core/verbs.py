"""Check that a bundle has what a plan's verbs need, and which graphs measure; pure.

The check reads the manifest only: what a graph really does shows when it runs.
"""

from collections.abc import Collection

from wire.arrays import names
from wire.bundle import Manifest
from wire.errors import BundleError
from wire.messages import (
    Annotate,
    Choose,
    Mask,
    Protect,
    Respond,
    SurveySum,
    TellGroup,
    Train,
    Verb,
)


def check_verbs(manifest: Manifest, verbs: tuple[Verb, ...]) -> None:
    """Raise BundleError if the bundle lacks something that a verb needs.

    Raises:
        BundleError: a verb names a graph that the bundle lacks; or a graph lacks an output that the
            verb needs, or changes a tensor that the bundle lacks.
    """
    tensor_keys = {spec.key for spec in manifest.tensors}
    for verb in verbs:
        if isinstance(verb, Protect | SurveySum | TellGroup | Mask):
            continue
        graph = manifest.graphs.get(verb.graph)
        if graph is None:
            raise BundleError(
                f"bundle {manifest.name}: no graph {verb.graph!r}. Known graphs: "
                f"{', '.join(sorted(manifest.graphs))}."
            )
        for output in graph.outputs:
            if (
                names.role_of(output) == names.NEXT
                and output.removeprefix(names.following.text) not in tensor_keys
            ):
                raise BundleError(
                    f"bundle {manifest.name}: output {output!r} of graph {verb.graph!r} belongs to "
                    "no tensor of the bundle"
                )
        counts = isinstance(verb, Train) or names.NUM_CORRECT in graph.outputs
        needed = (
            (names.LOSS_SUM, names.NUM_CORRECT)
            if counts
            else (names.LOSS_SUM,)
            if isinstance(verb, Choose)
            else ()
        )
        kind = verb.__struct_config__.tag
        if missing := [name for name in needed if name not in graph.outputs]:
            raise BundleError(
                f"bundle {manifest.name}: graph {verb.graph!r} has no output {missing[0]!r}, "
                f"which {kind} needs"
            )
        rows = names.of_role(dict.fromkeys(graph.outputs), names.OUTPUT)
        if isinstance(verb, Annotate | Respond) and len(rows) != 1:
            raise BundleError(
                f"bundle {manifest.name}: {kind} needs a graph with one per-example output, got "
                f"{verb.graph!r} with {len(rows)}"
            )


def measuring(manifest: Manifest) -> Collection[str]:
    """Return the graphs whose evaluation may report more than the loss and the number correct.

    Every other metric of a graph counts as a response, even if the manifest does not say so.
    """
    graphs = []
    for name, graph in manifest.graphs.items():
        metrics = set(names.of_role(dict.fromkeys(graph.outputs), names.METRIC))
        others = metrics - {names.LOSS_SUM, names.NUM_CORRECT}
        if graph.responses or others or metrics == {names.LOSS_SUM}:
            graphs.append(name)
    return graphs
