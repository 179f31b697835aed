"""Public declarations of the library, in the format of binary-compatibility-validator.

They are read from the jar without code of a module and written to `api/MODULE.api`.
"""

import zipfile
from pathlib import Path

from steps.class_file import ClassFile, ClassMember
from steps.modules import MODULES, Module, compile_module
from steps.toolchain import ROOT

MARK = "io/shoal/core/InternalShoalApi"
"""Annotation of a class, function or property that the compiler refuses outside of Shoal's modules.

Such declarations are left out, and so are Kotlin's internal ones: an app cannot call them.
"""
ARTEFACTS = {
    "shoal-android": ("core", "executorch", "android"),
    "shoal-android-foreground": ("foreground",),
    "shoal-android-recording": ("recording",),
    "shoal-android-ktx": ("ktx",),
}
"""Modules of each artefact that an app depends on."""
PUBLISHED = {modules[-1]: artefact for artefact, modules in ARTEFACTS.items()}
"""Published names of the modules that an app names; the others keep their own."""
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
"""Suffixes of the names of two methods that Kotlin generates.

The first carries a property's annotations and is named after the getter. The second fills in the
default values of a function's parameters.
"""


def dump_path(module: Module) -> Path:
    """Return the path of the file with a module's declarations in the repository."""
    return ROOT / "api" / f"{module.name}.api"


def api() -> str:
    """Write the modules' declarations into the repository and return a line of report.

    It names the changed files, or without a change the number of declarations of each artefact.
    """
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
    """Return the names of an artefact's public declarations.

    These are each class (with everything in it), and each function, property and constant outside
    of classes. Overloaded functions count once.
    """
    classes = [
        declared for module in ARTEFACTS[artefact] for declared in _public_classes(MODULES[module])
    ]
    return sorted({name for declared in classes for name in _names(declared)})


def _names(declared: ClassFile) -> list[str]:
    members = _members(declared)
    is_object = declared.access & ENUM or any(m.name == "INSTANCE" for m in members)
    # a class of the declarations that a file has outside of classes
    if members and all(m.access & STATIC for m in members) and not is_object:
        return [
            f"{declared.name.rpartition('/')[0]}/{m.name}"
            for m in members
            if not m.name.endswith(OF_DEFAULTS)
        ]
    return [] if "$" in declared.name else [declared.name]


def dump(module: Module) -> str:
    """Compile a module and return the text of its declarations, class by class."""
    compile_module(module)
    return "\n".join(_class_text(declared) for declared in _public_classes(module))


def _public_classes(module: Module) -> list[ClassFile]:
    with zipfile.ZipFile(module.public_jar) as jar:
        classes = {
            name.removesuffix(".class"): ClassFile(jar.read(name))
            for name in jar.namelist()
            if name.endswith(".class")
        }
    marked = {
        name for name, declared in classes.items() if declared.annotated(declared.attributes, MARK)
    }
    return [
        declared
        for name, declared in sorted(classes.items())
        if declared.access & PUBLIC
        and "$$" not in name
        and not marked.intersection(_enclosing(name))
        and (_members(declared) or _is_named(declared))
    ]


def _is_named(declared: ClassFile) -> bool:
    """Return True if an app may name a class without public members.

    That is an interface, or one that has a supertype, such as a kind of a sealed class. Left out
    are the classes that Kotlin makes of files, and annotations.
    """
    return not declared.access & ANNOTATION and (
        bool(declared.access & INTERFACE or declared.interfaces)
        or declared.base != "java/lang/Object"
    )


def _enclosing(name: str) -> list[str]:
    """Return the names of a class and of the classes around it."""
    parts = name.split("$")
    return ["$".join(parts[:count]) for count in range(1, len(parts) + 1)]


def _members(declared: ClassFile) -> list[ClassMember]:
    members = declared.fields + declared.methods
    marked = [m for m in members if declared.annotated(m.attributes, MARK)]
    shown = [
        m
        for m in members
        if m.access & (PUBLIC | PROTECTED)
        and m.name != "<clinit>"
        and not m.name.endswith(OF_PROPERTY)
    ]
    public_members = [m for m in shown if not any(_goes_with(declared, m, mark) for mark in marked)]
    return sorted(public_members, key=lambda m: (m in declared.methods, m.name, m.descriptor))


def _goes_with(declared: ClassFile, member: ClassMember, marked: ClassMember) -> bool:
    """Return True if the annotation of `marked` applies to `member` as well.

    This holds for the member itself, for the method with its parameters' defaults, and for a
    property's getter, setter and field.
    """
    if marked.name.endswith(OF_PROPERTY):
        getter = marked.name.removesuffix(OF_PROPERTY)
        name = getter.removeprefix("get").removeprefix("is")
        return member.name in (getter, f"set{name}", name, name[:1].lower() + name[1:])
    if member.name == marked.name + OF_DEFAULTS:
        parameters = marked.descriptor.partition(")")[0][1:]
        return member.descriptor.startswith((f"({parameters}", f"(L{declared.name};{parameters}"))
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


def _member_text(declared: ClassFile, member: ClassMember) -> str:
    if member in declared.fields:
        return f"{_words(member.access)} field {member.name} {member.descriptor}"
    return f"{_words(member.access)} fun {member.name} {member.descriptor}"


def _words(access: int) -> str:
    return " ".join(word for flag, word in WORDS.items() if access & flag)
