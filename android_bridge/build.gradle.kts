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
    plugins.withId("maven-publish") {
        extensions.configure<PublishingExtension> {
            publications.withType<MavenPublication>().configureEach {
                pom {
                    name = "Shoal: $artifactId"
                    description = "Federated learning on phones: trains with ExecuTorch on data that never leaves the device, over MQTT."
                    url = property("shoal.url") as String
                    licenses {
                        license {
                            name = "Apache-2.0"
                            url = "https://www.apache.org/licenses/LICENSE-2.0.txt"
                        }
                    }
                    developers {
                        developer {
                            id = "shoal"
                            name = "The developers of Shoal"
                        }
                    }
                    scm { url = property("shoal.url") as String }
                }
            }
        }
    }
}
