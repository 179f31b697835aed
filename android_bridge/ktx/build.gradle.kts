plugins {
    alias(libs.plugins.android.library)
    `maven-publish`
}

android { namespace = "io.shoal.ktx" }

dependencies {
    api(project(":android"))
    api(libs.coroutines)
    testImplementation(libs.kotlin.test.junit5)
    testImplementation(libs.junit.jupiter)
    testRuntimeOnly(libs.junit.launcher)
}
