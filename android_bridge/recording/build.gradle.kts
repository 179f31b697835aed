plugins {
    alias(libs.plugins.android.library)
    `maven-publish`
}

android { namespace = "io.shoal.recording" }

dependencies {
    api(project(":android"))
    testImplementation(libs.kotlin.test.junit5)
    testImplementation(libs.junit.jupiter)
    testRuntimeOnly(libs.junit.launcher)
}
