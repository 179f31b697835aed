pluginManagement {
    repositories {
        google()
        mavenCentral()
        gradlePluginPortal()
    }
}

dependencyResolutionManagement {
    repositoriesMode = RepositoriesMode.FAIL_ON_PROJECT_REPOS
    repositories {
        google()
        mavenCentral()
    }
}

rootProject.name = "shoal-android"
include(":core", ":executorch", ":android", ":ktx", ":foreground", ":recording", ":sample")
// The host module runs the adapter on a desktop JVM against the pip wheel's runtime; `./build fetch` downloads the classes it compiles against.
if (file(".tools").isDirectory) include(":jvm-host")
