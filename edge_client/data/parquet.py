"""A recording in Parquet, for machines that have pyarrow; it reads as a CSV file of the same
columns does."""

from collections.abc import Iterator
from pathlib import Path

from wire.errors import DataError

PARQUET = ".parquet"


def read_parquet(path: Path) -> Iterator[list[str]]:
    """The header, and then a row for each sample, as text. A value that is missing is an empty
    text.

    Raises:
        DataError: pyarrow is not installed, or the file cannot be read.
    """
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ModuleNotFoundError:
        raise DataError(
            f"{path}: Parquet needs the package pyarrow: pip install 'shoal[parquet]'"
        ) from None
    try:
        with ParquetFile(path) as file:
            yield list(file.schema_arrow.names)
            for batch in file.iter_batches():
                columns = [column.to_pylist() for column in batch.columns]
                yield from (
                    ["" if value is None else str(value) for value in row]
                    for row in zip(*columns, strict=True)
                )
    except (OSError, ArrowException) as error:
        raise DataError(f"{path}: not readable as Parquet: {str(error).splitlines()[0]}") from None
