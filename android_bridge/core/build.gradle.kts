import org.jetbrains.kotlin.gradle.dsl.JvmTarget

plugins {
    alias(libs.plugins.kotlin.jvm)
    `java-library`
    `maven-publish`
}

java {
    sourceCompatibility = JavaVersion.VERSION_1_8
    targetCompatibility = JavaVersion.VERSION_1_8
    withSourcesJar()
    withJavadocJar()
}

kotlin { compilerOptions { jvmTarget = JvmTarget.JVM_1_8 } }

// Kotlin source with the library's version; `steps/modules.py` writes the same.
val writeVersion = tasks.register<Copy>("writeVersion") {
    val values = mapOf("version" to project.version.toString())
    inputs.properties(values)
    from("BuildVersion.kt.template")
    rename { "BuildVersion.kt" }
    filter { it.replace("@VERSION@", values.getValue("version")) }
    into(layout.buildDirectory.dir("generated/version"))
}

kotlin { sourceSets.main { kotlin.srcDir(writeVersion) } }

tasks.compileKotlin {
    compilerOptions {
        freeCompilerArgs.add("-Xjdk-release=8")
        allWarningsAsErrors = true
    }
}

dependencies {
    implementation(libs.bouncycastle)
    testImplementation(libs.kotlin.test.junit5)
    testImplementation(libs.junit.jupiter)
    testRuntimeOnly(libs.junit.launcher)
}

tasks.test { systemProperty("shoal.root", rootDir.parent) }
