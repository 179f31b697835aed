// The Kotlin plugin stands beside Android's, so that Android's built-in Kotlin takes this version of the compiler.
plugins {
    alias(libs.plugins.android.library) apply false
    alias(libs.plugins.android.application) apply false
    alias(libs.plugins.kotlin.jvm) apply false
}

// `build` in this folder is a script.
layout.buildDirectory = layout.projectDirectory.dir(".gradle/root-build")

subprojects {
    group = property("shoal.group") as String
    version = property("shoal.version") as String
}
