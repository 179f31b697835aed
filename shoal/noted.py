"""A command of Typer that notes what it was asked before it is carried out."""

from typing import Any

from typer.core import TyperCommand

from shoal.asked import NOW, describe


class NotedCommand(TyperCommand):
    """Tells `shoal.asked` its options and their values."""

    def invoke(self, ctx: Any) -> Any:
        """Carry the command out."""
        options = [parameter for parameter in self.params if parameter.param_type_name == "option"]
        told = [
            (option.opts[0], ctx.params.get(option.name or ""), option.get_default(ctx))
            for option in options
        ]
        NOW.set(describe(ctx.command_path, told))
        return super().invoke(ctx)
