package io.shoal.core

import org.junit.jupiter.api.Assumptions.assumeTrue
import java.io.File

/** Folder of the repository. */
val repository: File = File(System.getProperty("shoal.root"))

/**
 * Return a file that the Python side wrote for this run (`tests/android/kotlin_vectors.py`), or
 * skip the test if it describes a service, and none runs.
 */
fun fromPython(name: String): File {
    val folder = System.getProperty("shoal.tests").orEmpty()
    check(folder.isNotEmpty()) { "the Python side wrote no vectors: run ./build test" }
    return File(folder, name).also { assumeTrue(it.exists(), "$it needs a service: pytest tests/android/test_core.py would run this") }
}
