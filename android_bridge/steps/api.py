"""The public declarations of the library, in the form of binary-compatibility-validator: what an app is compiled against.

They are read from the jar without code that the compiler writes beside a module's own, and kept in `api/MODULE.api`, so that a change of
one is seen. What Kotlin calls internal is not among them, nor what bears the mark `InternalShoalApi`.
"""

import zipfile
from pathlib import Path

from steps.class_file import ClassFile, Member
from steps.modules import MODULES, Module, compile_module
from steps.toolchain import ROOT

MARK = "io/shoal/core/InternalShoalApi"
PUBLIC_MODULES = ("core", "android", "ktx", "recording")
PUBLIC, STATIC, FINAL, ABSTRACT, INTERFACE, SYNTHETIC, ANNOTATION, ENUM = 0x1, 0x8, 0x10, 0x400, 0x200, 0x1000, 0x2000, 0x4000
PRIVATE, PROTECTED = 0x2, 0x4
WORDS = {PUBLIC: "public", PROTECTED: "protected", STATIC: "static", FINAL: "final", ABSTRACT: "abstract", SYNTHETIC: "synthetic"}


def dump_path(module: Module) -> Path:
    """The file in the repository that says what a module declares."""
    return ROOT / "api" / f"{module.name}.api"


def api() -> str:
    """Write what the modules declare into the repository; which files changed."""
    changed = []
    for module in (MODULES[name] for name in PUBLIC_MODULES):
        path, text = dump_path(module), dump(module)
        if not path.exists() or path.read_text() != text:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            changed.append(str(path.relative_to(ROOT)))
    return f"written: {' '.join(changed)}" if changed else "the public declarations are those of api/"


def dump(module: Module) -> str:
    """The declarations of a module, class by class."""
    compile_module(module)
    return "\n".join(_class_text(declared) for declared in _public_classes(module))


def public_classes(module: Module) -> list[str]:
    """The names, with dots, of the classes that an app can name."""
    return [declared.name.replace("/", ".") for declared in _public_classes(module)]


def _public_classes(module: Module) -> list[ClassFile]:
    with zipfile.ZipFile(module.public_jar) as jar:
        found = {name.removesuffix(".class"): ClassFile(jar.read(name)) for name in jar.namelist() if name.endswith(".class")}
    marked = {name for name, declared in found.items() if declared.annotated(declared.attributes, MARK)}
    return [
        declared
        for name, declared in sorted(found.items())
        if declared.access & PUBLIC and "$$" not in name and name.partition("$")[0] not in marked and _members(declared)
    ]


def _members(declared: ClassFile) -> list[Member]:
    members = declared.fields + declared.methods
    marked = {m.name for m in members if declared.annotated(m.attributes, MARK)}
    shown = [
        m for m in members if m.access & (PUBLIC | PROTECTED) and m.name != "<clinit>" and m.name.removesuffix("$default") not in marked
    ]
    return sorted(shown, key=lambda m: (m in declared.methods, m.name, m.descriptor))


def _class_text(declared: ClassFile) -> str:
    kind = "annotation class" if declared.access & ANNOTATION else "interface" if declared.access & INTERFACE else "class"
    above = [name for name in [declared.base, *declared.interfaces] if name != "java/lang/Object"]
    head = f"{_words(declared.access & ~SYNTHETIC)} {kind} {declared.name}{' : ' + ', '.join(above) if above else ''} {{"
    return "\n".join([head, *(f"\t{_member_text(declared, member)}" for member in _members(declared)), "}\n"])


def _member_text(declared: ClassFile, member: Member) -> str:
    if member in declared.fields:
        return f"{_words(member.access)} field {member.name} {member.descriptor}"
    return f"{_words(member.access)} fun {member.name} {member.descriptor}"


def _words(access: int) -> str:
    return " ".join(word for flag, word in WORDS.items() if access & flag)
