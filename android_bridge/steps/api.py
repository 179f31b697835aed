"""The public declarations of the library, in the form of binary-compatibility-validator: what an
app is compiled against.

They are read from the jar without code that the compiler writes beside a module's own, and kept in
`api/MODULE.api`, so that a change of one is seen. Left out is what an app cannot call: what Kotlin
calls internal, and a class, function or property with the mark `InternalShoalApi`, which the
compiler refuses outside of Shoal's modules.
"""

import zipfile
from pathlib import Path

from steps.class_file import ClassFile, Member
from steps.modules import MODULES, Module, compile_module
from steps.toolchain import ROOT

MARK = "io/shoal/core/InternalShoalApi"
ARTEFACTS = {
    "shoal-android": ("core", "executorch", "android"),
    "shoal-android-foreground": ("foreground",),
    "shoal-android-recording": ("recording",),
    "shoal-android-ktx": ("ktx",),
}
"""The modules of each artefact that an app depends on."""
PUBLIC_MODULES = tuple(module for modules in ARTEFACTS.values() for module in modules)
PUBLIC, STATIC, FINAL, ABSTRACT, INTERFACE, SYNTHETIC, ANNOTATION, ENUM = (
    0x1,
    0x8,
    0x10,
    0x400,
    0x200,
    0x1000,
    0x2000,
    0x4000,
)
PROTECTED = 0x4
WORDS = {
    PUBLIC: "public",
    PROTECTED: "protected",
    STATIC: "static",
    FINAL: "final",
    ABSTRACT: "abstract",
    SYNTHETIC: "synthetic",
}
OF_PROPERTY, OF_DEFAULTS = "$annotations", "$default"
"""What Kotlin adds to a getter's name for the method that carries a property's annotations, and to
a function's for the one that fills in parameters that were left out."""


def dump_path(module: Module) -> Path:
    """The file in the repository that says what a module declares."""
    return ROOT / "api" / f"{module.name}.api"


def api() -> str:
    """Write what the modules declare into the repository; which files changed, or how much each
    artefact declares."""
    changed = []
    for module in (MODULES[name] for name in PUBLIC_MODULES):
        path, text = dump_path(module), dump(module)
        if not path.exists() or path.read_text() != text:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            changed.append(str(path.relative_to(ROOT)))
    counts = ", ".join(f"{artefact} {len(declarations(artefact))}" for artefact in ARTEFACTS)
    return (
        f"written: {' '.join(changed)}"
        if changed
        else f"the public declarations are those of api/: {counts}"
    )


def declarations(artefact: str) -> list[str]:
    """What an app can name of an artefact: each class, with all that is in it, and each function,
    property and constant outside of classes. Functions of one name are one."""
    found = [
        declared for module in ARTEFACTS[artefact] for declared in _public_classes(MODULES[module])
    ]
    return sorted({name for declared in found for name in _names(declared)})


def _names(declared: ClassFile) -> list[str]:
    members = _members(declared)
    is_object = declared.access & ENUM or any(m.name == "INSTANCE" for m in members)
    if (
        all(m.access & STATIC for m in members) and not is_object
    ):  # what a file declares outside of classes
        return [
            f"{declared.name.rpartition('/')[0]}/{m.name}"
            for m in members
            if not m.name.endswith(OF_DEFAULTS)
        ]
    return [] if "$" in declared.name else [declared.name]


def dump(module: Module) -> str:
    """The declarations of a module, class by class."""
    compile_module(module)
    return "\n".join(_class_text(declared) for declared in _public_classes(module))


def public_classes(module: Module) -> list[str]:
    """The names, with dots, of the classes that an app can name."""
    return [declared.name.replace("/", ".") for declared in _public_classes(module)]


def _public_classes(module: Module) -> list[ClassFile]:
    with zipfile.ZipFile(module.public_jar) as jar:
        found = {
            name.removesuffix(".class"): ClassFile(jar.read(name))
            for name in jar.namelist()
            if name.endswith(".class")
        }
    marked = {
        name for name, declared in found.items() if declared.annotated(declared.attributes, MARK)
    }
    return [
        declared
        for name, declared in sorted(found.items())
        if declared.access & PUBLIC
        and "$$" not in name
        and not marked.intersection(_enclosing(name))
        and _members(declared)
    ]


def _enclosing(name: str) -> list[str]:
    """A class and those that it is in."""
    parts = name.split("$")
    return ["$".join(parts[:count]) for count in range(1, len(parts) + 1)]


def _members(declared: ClassFile) -> list[Member]:
    members = declared.fields + declared.methods
    marked = [m for m in members if declared.annotated(m.attributes, MARK)]
    shown = [
        m
        for m in members
        if m.access & (PUBLIC | PROTECTED)
        and m.name != "<clinit>"
        and not m.name.endswith(OF_PROPERTY)
    ]
    kept = [m for m in shown if not any(_goes_with(declared, m, mark) for mark in marked)]
    return sorted(kept, key=lambda m: (m in declared.methods, m.name, m.descriptor))


def _goes_with(declared: ClassFile, member: Member, marked: Member) -> bool:
    """Whether a mark on `marked` is one on `member`: itself, what fills in its parameters, or a
    property's getter, setter and field."""
    if marked.name.endswith(OF_PROPERTY):
        getter = marked.name.removesuffix(OF_PROPERTY)
        name = getter.removeprefix("get").removeprefix("is")
        return member.name in (getter, f"set{name}", name, name[:1].lower() + name[1:])
    if member.name == marked.name + OF_DEFAULTS:
        given = marked.descriptor.partition(")")[0][1:]
        return member.descriptor.startswith((f"({given}", f"(L{declared.name};{given}"))
    return (member.name, member.descriptor) == (marked.name, marked.descriptor)


def _class_text(declared: ClassFile) -> str:
    kind = (
        "annotation class"
        if declared.access & ANNOTATION
        else "interface"
        if declared.access & INTERFACE
        else "class"
    )
    above = [name for name in [declared.base, *declared.interfaces] if name != "java/lang/Object"]
    head = (
        f"{_words(declared.access & ~SYNTHETIC)} {kind} "
        f"{declared.name}{' : ' + ', '.join(above) if above else ''} {{"
    )
    return "\n".join(
        [head, *(f"\t{_member_text(declared, member)}" for member in _members(declared)), "}\n"]
    )


def _member_text(declared: ClassFile, member: Member) -> str:
    if member in declared.fields:
        return f"{_words(member.access)} field {member.name} {member.descriptor}"
    return f"{_words(member.access)} fun {member.name} {member.descriptor}"


def _words(access: int) -> str:
    return " ".join(word for flag, word in WORDS.items() if access & flag)
