plugins {
    alias(libs.plugins.android.library)
    `maven-publish`
}

android {
    namespace = "io.shoal.executorch"
    defaultConfig { consumerProguardFiles("consumer-rules.pro") }
}

dependencies {
    api(project(":core"))
    api(libs.executorch)
}
