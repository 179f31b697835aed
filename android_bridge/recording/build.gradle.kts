plugins {
    alias(libs.plugins.android.library)
    `maven-publish`
}

android { namespace = "io.shoal.recording" }

dependencies { api(project(":android")) }
