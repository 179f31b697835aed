"""Parts of a client, by lines of the Kotlin core, and what of each the prototype in C++ has
(`benchmarks.cpp_client`)."""

from pathlib import Path

KOTLIN = Path(__file__).parents[1] / "android_bridge" / "core" / "src"
CORE, TESTS = KOTLIN / "main", KOTLIN / "test"
MQTT = "MQTT: connections, limits of brokers, TLS"
SECRET, RECORDINGS = "secret sums and surveys", "recordings and live data"
PARTS: dict[str, tuple[str, str]] = {
    MQTT: (
        "mqtt/* BrokerAddress TlsFiles Link",
        "most of it is in libmosquitto; without limits of brokers and MQTT 3.1.1",
    ),
    "messages, signatures, topics": (
        "wire/Messages wire/MessageFields wire/Json wire/JsonText wire/Fields wire/Codec "
        "wire/Verifier wire/Verbs wire/VerbFields wire/PublicKey wire/Topics wire/PieceRules Route",
        "signatures; most fields are not checked",
    ),
    "bundles and tensor files": (
        "wire/Manifest wire/Bundle wire/StoredZip wire/TensorFile wire/Names wire/Tasks Tensor "
        "LoadedBundle",
        "signature, hashes, archive, tensors; without limits and versions",
    ),
    "work on a plan": (
        "PlanExecution Executor PlanWork Ports Batches Holdout Windows Labels Padding Fitting "
        "Split Arithmetic Quantised random/*",
        "`train` and `evaluate` in one task; without the shared order of batches, columns, int8 "
        "and `protect`",
    ),
    "session: plans, updates, answers, errors": (
        "Agent Session SessionText Rounds Admission AggregatorTime Outbox Sending Downloads "
        "PartFile Retry Traffic Identity Containment Questions Errors ErrorReports OwnerThread "
        "Withdrawal Unless",
        "one plan at a time, blobs and pieces to the device; without retries, pieces from the "
        "device, epochs, starts, errors and withdrawal",
    ),
    "stores": ("Storage FolderStorage StoredTensors WatchedStorage AtomicFiles Owner", "none"),
    "resume": ("Checkpoint CheckpointFile Checkpoints", "none"),
    "policy": ("PolicyRules wire/Policy", "none"),
    "enrolment": ("Enrolment EnrolmentService EnrolmentToken SigningRequest", "none"),
    SECRET: ("secret/* wire/Survey wire/SumQuestion", "none"),
    "releases, predictions, personal models": (
        "Releases Offers Trial Predictor PersonalModel PersonalModels Packaged",
        "none",
    ),
    RECORDINGS: ("RecordingFile Recordings Stream Drift", "none"),
}
"""Parts of a client: files of the Kotlin core, and how far the prototype goes."""
OTHERS = "the rest of the Kotlin core"


def count_lines(path: Path) -> int:
    """Return the number of lines of a file."""
    return len(path.read_text().splitlines())


def lines_of_parts() -> dict[str, int]:
    """Return the lines of the Kotlin core by part."""
    core = CORE / "kotlin" / "io" / "shoal" / "core"
    lines = {path: count_lines(path) for path in core.rglob("*.kt")}
    parts = {}
    for part, (patterns, _) in PARTS.items():
        paths = [path for pattern in patterns.split() for path in core.glob(f"{pattern}.kt")]
        parts[part] = sum(lines.pop(path) for path in paths)
    return parts | {OTHERS: sum(lines.values())}


def parts_table(kotlin_lines: dict[str, int]) -> str:
    """Return the parts of a client as Markdown."""
    lines = ["| part | lines of the Kotlin core | in the prototype |", "|---|---|---|"]
    for part, count in kotlin_lines.items():
        lines.append(f"| {part} | {count:,} | {PARTS[part][1] if part in PARTS else 'none'} |")
    return "\n".join([*lines, f"| all | {sum(kotlin_lines.values()):,} | |"])
