plugins {
    alias(libs.plugins.android.library)
    `maven-publish`
}

android {
    namespace = "io.shoal.foreground"
    defaultConfig { consumerProguardFiles("consumer-rules.pro") }
}

dependencies {
    api(project(":android"))
    implementation(libs.work.runtime)
}
