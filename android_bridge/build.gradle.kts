// Settings that all modules share, in `subprojects` below; a module's own file has only its differences. The Kotlin plugin is listed beside
// Android's so that Android's built-in Kotlin uses this version of the compiler.
import com.android.build.api.dsl.LibraryExtension
import org.jetbrains.kotlin.gradle.dsl.KotlinBaseExtension
import org.jetbrains.kotlin.gradle.dsl.KotlinVersion
import org.jetbrains.kotlin.gradle.tasks.KotlinJvmCompile

plugins {
    alias(libs.plugins.android.library) apply false
    alias(libs.plugins.android.application) apply false
    alias(libs.plugins.kotlin.jvm) apply false
}

// `build` in this folder is a script.
layout.buildDirectory = layout.projectDirectory.dir(".gradle/root-build")

// Oldest Kotlin version of an app whose compiler can read the library and the standard library it depends on.
val oldestKotlin = libs.versions.kotlin.oldest.get()

// Published names of modules that apps depend on; other modules are published under their own names.
val artefacts = mapOf(
    "android" to "shoal-android",
    "foreground" to "shoal-android-foreground",
    "recording" to "shoal-android-recording",
    "ktx" to "shoal-android-ktx",
)

subprojects {
    group = property("shoal.group") as String
    version = property("shoal.version") as String
    tasks.withType<Test>().configureEach { useJUnitPlatform() }

    plugins.withId("com.android.library") {
        extensions.configure<LibraryExtension> {
            compileSdk = 36
            defaultConfig { minSdk = 26 }
            compileOptions {
                sourceCompatibility = JavaVersion.VERSION_1_8
                targetCompatibility = JavaVersion.VERSION_1_8
            }
            lint {
                abortOnError = true
                textReport = true
            }
            publishing {
                singleVariant("release") {
                    withSourcesJar()
                    withJavadocJar()
                }
            }
        }
    }

    // Published modules are compiled with the same options as in `./build` (steps/modules.py).
    plugins.withId("maven-publish") {
        extensions.configure<KotlinBaseExtension>("kotlin") { coreLibrariesVersion = oldestKotlin }
        tasks.withType<KotlinJvmCompile>().configureEach {
            val isMain = "Test" !in name
            // A test can use internal declarations of its own module; in Android modules also those of the module's dependencies.
            if ("UnitTest" in name) friendPaths.from(libraries)
            compilerOptions {
                optIn.add("io.shoal.core.InternalShoalApi")
                if (isMain) {
                    languageVersion = KotlinVersion.KOTLIN_2_1
                    apiVersion = KotlinVersion.KOTLIN_2_1
                    freeCompilerArgs.addAll(
                        "-Xexplicit-api=strict",
                        "-Xsuppress-version-warnings",
                        "-Xno-source-debug-extension",
                        "-Xno-call-assertions",
                        "-Xno-receiver-assertions",
                    )
                    // Apps hardly call the others: null from Java is not checked there.
                    if (project.name !in listOf("android", "recording")) freeCompilerArgs.add("-Xno-param-assertions")
                }
            }
        }
        pluginManager.apply("signing")
        afterEvaluate { // Android's component does not exist earlier
            val publishing = extensions.getByType<PublishingExtension>()
            publishing.publications.create<MavenPublication>("release") {
                artifactId = artefacts[project.name] ?: project.name
                from(components.findByName("release") ?: components["java"])
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
                            organizationUrl = property("shoal.url") as String
                        }
                    }
                    scm {
                        url = property("shoal.url") as String
                        connection = "scm:git:${property("shoal.url")}.git"
                    }
                }
            }
            val key = findProperty("signingKey") as String?
            if (key != null) {
                extensions.configure<SigningExtension> {
                    useInMemoryPgpKeys(key, findProperty("signingPassword") as String?)
                    sign(publishing.publications)
                }
            }
        }
    }
}
