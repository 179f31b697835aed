import org.jetbrains.kotlin.gradle.dsl.KotlinVersion

plugins {
    alias(libs.plugins.android.library)
    `maven-publish`
}

android {
    namespace = "io.shoal.foreground"
    compileSdk = 36
    defaultConfig {
        minSdk = 26
        consumerProguardFiles("consumer-rules.pro")
    }
    compileOptions {
        sourceCompatibility = JavaVersion.VERSION_1_8
        targetCompatibility = JavaVersion.VERSION_1_8
    }
    publishing {
        singleVariant("release") {
            withSourcesJar()
            withJavadocJar()
        }
    }
}

// An app's compiler, from Kotlin 2.1 on, reads this library and the standard library that it brings.
kotlin {
    coreLibrariesVersion = libs.versions.kotlin.oldest.get()
    compilerOptions {
        languageVersion = KotlinVersion.KOTLIN_2_1
        apiVersion = KotlinVersion.KOTLIN_2_1
        optIn.add("io.shoal.core.InternalShoalApi")
        freeCompilerArgs.addAll("-Xexplicit-api=strict", "-Xsuppress-version-warnings")
    }
}

dependencies {
    api(project(":android"))
    implementation(libs.work.runtime)
}

afterEvaluate {
    publishing {
        publications {
            create<MavenPublication>("release") {
                artifactId = "shoal-android-foreground"
                from(components["release"])
            }
        }
    }
}
