"""Personal models that a device keeps, each with the model that it was made from. Pure.

Rules (SPEC.md, 'What a device keeps'): a personal model belongs to one model of one bundle and is
used with that model alone. A model without a personal model answers as it came. The device keeps
the latest personal model of each model, and those of the last few models.
"""

from collections.abc import Sequence

import msgspec

from wire.arrays import names
from wire.arrays.tensors import Tensors, TensorSpec
from wire.bundle import Bundle
from wire.messages import Digest, Name

MOST_KEPT = 3
"""Maximum number of personal models on a device; the oldest are dropped."""


class PersonalModel(msgspec.Struct, frozen=True):
    """Personal model of one model. Its tensors are a blob of the state folder."""

    run_id: Name
    bundle: Digest
    model: Digest
    tensors: Digest


def with_kept(models: Sequence[PersonalModel], model: PersonalModel) -> tuple[PersonalModel, ...]:
    """Return the personal models after `model` was added, the newest at the end."""
    others = (
        personal_model
        for personal_model in models
        if (personal_model.bundle, personal_model.model) != (model.bundle, model.model)
    )
    return (*others, model)[-MOST_KEPT:]


def kept_of(models: Sequence[PersonalModel], bundle: str, model: str) -> PersonalModel | None:
    """Return the personal model of this model of this bundle, or None."""
    return next(
        (
            personal_model
            for personal_model in models
            if (personal_model.bundle, personal_model.model) == (bundle, model)
        ),
        None,
    )


def why_alone(models: Sequence[PersonalModel], bundle: str, model: str) -> str:
    """Return why a model answers without a personal model although the device has one, or "".

    It is empty if the device has no personal model at all, or has one of this model. Personal
    models of all campaigns count.
    """
    if not models or kept_of(models, bundle, model) is not None:
        return ""
    return (
        f"the personal model of campaign {models[-1].run_id} was made from model "
        f"{models[-1].model[:12]}, not from this one"
    )


def usable(private: Sequence[TensorSpec], stored: Tensors, num_train: int) -> Tensors:
    """Return the device's stored tensors that a plan can start from.

    These are tensors that the manifest calls `private`, in its dtypes and shapes (another version
    of the bundle may have others), and columns with one row for each window that the device trains
    on.
    """
    layouts = {spec.key: (spec.dtype, spec.shape) for spec in private}
    tensors = {
        key: value
        for key, value in stored.items()
        if layouts.get(key) == (str(value.dtype), value.shape)
    }
    columns = names.of_role(stored, names.COLUMN).items()
    return tensors | {key: value for key, value in columns if value.shape[:1] == (num_train,)}


def own_tensors(bundle: Bundle, model: Tensors, private: Tensors) -> Tensors:
    """Return the tensors of the device's model: those that it received, and its own over them.

    Own tensors that do not fit the bundle are left out: another version may have other tensors.
    """
    layouts = {spec.key: (spec.dtype, spec.shape) for spec in bundle.manifest.tensors}
    personal = names.of_role(private, names.PRIVATE) | names.part(private, names.PERSONAL)
    fitting = {
        key: value
        for key, value in personal.items()
        if layouts.get(key) == (str(value.dtype), value.shape)
    }
    return {
        **bundle.initial,
        **names.of_role(fitting, names.PRIVATE),
        **model,
        **names.of_role(fitting, *names.OF_MODEL),
    }
