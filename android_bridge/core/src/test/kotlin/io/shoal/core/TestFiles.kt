package io.shoal.core

import org.junit.jupiter.api.Assumptions.assumeTrue
import java.io.File

/** Folder of the repository. */
val repository: File = File(System.getProperty("shoal.root"))

/**
 * Return a file that the Python side wrote for this run (`tests/android/kotlin_vectors.py`), or
 * skip the test without it.
 */
fun fromPython(name: String): File {
    val folder = System.getProperty("shoal.tests").orEmpty()
    assumeTrue(folder.isNotEmpty(), "the Python side wrote no vectors: pytest tests/android/test_core.py would run this")
    return File(folder, name)
}
