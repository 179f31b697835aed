plugins {
    alias(libs.plugins.android.library)
    `maven-publish`
}

android {
    namespace = "io.shoal.android"
    defaultConfig { consumerProguardFiles("consumer-rules.pro") }
}

dependencies {
    api(project(":core"))
    implementation(project(":executorch"))
    implementation(libs.work.runtime)
    testImplementation(libs.kotlin.test.junit5)
    testImplementation(libs.junit.jupiter)
    testRuntimeOnly(libs.junit.launcher)
}
