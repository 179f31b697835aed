package io.shoal.host

import io.shoal.core.BrokerAddress
import io.shoal.core.ConfigException
import io.shoal.core.FolderStorage
import io.shoal.core.Log
import io.shoal.core.Owner
import io.shoal.core.OwnerThread
import io.shoal.core.Phone
import io.shoal.core.ShoalException
import io.shoal.core.TlsFiles
import io.shoal.core.wire.Policy
import io.shoal.core.wire.PublicKey
import io.shoal.executorch.ExecutorchLoader
import java.io.File
import java.time.Instant
import java.util.concurrent.CountDownLatch
import java.util.concurrent.atomic.AtomicBoolean
import kotlin.concurrent.thread
import kotlin.system.exitProcess

private const val USAGE = """usage: phone --id ID --data FOLDER --state FOLDER --broker URL --fleet FLEET (--trust FILE | --insecure yes) [--policy FILE]
             [--ca FILE] [--broker-user USER] [--broker-password-file FILE] [--job-seconds S] [--checkpoint-seconds S]

Runs a phone on this machine until SIGTERM: the same core and ExecuTorch adapter as in an app. FILE of --trust has one root key or
several, that of --policy what plans may ask of this phone, as JSON. With --job-seconds the phone runs jobs, one after the other, of at
most S seconds, as Android has it; with --checkpoint-seconds it notes so often how far a plan is. Without --trust every plan and bundle is
believed: --insecure yes permits that."""

private val OPTIONS = setOf(
    "--id", "--data", "--state", "--broker", "--fleet", "--trust", "--insecure", "--policy", "--ca", "--broker-user", "--broker-password-file",
    "--job-seconds", "--checkpoint-seconds",
)

/**
 * Entry point of a phone on a desktop machine. A [ShoalException] is reported on one line, with
 * status 2.
 */
public fun main(arguments: Array<String>) {
    try {
        run(arguments.toList())
    } catch (error: ShoalException) {
        System.err.println("error: ${error.message}")
        exitProcess(2)
    } catch (error: Throwable) { // some of its threads would keep the process alive
        error.printStackTrace()
        exitProcess(1)
    }
}

private fun run(arguments: List<String>) {
    val options = arguments.chunked(2)
    options.firstOrNull { it.size < 2 || it[0] !in OPTIONS }?.let {
        throw ConfigException("option ${it[0]} is unknown, or has no value\n$USAGE")
    }
    fun values(name: String) = options.filter { it[0] == name }.map { it[1] }
    fun required(name: String) = values(name).lastOrNull() ?: throw ConfigException("$name is missing\n$USAGE")
    val (id, fleet) = required("--id") to required("--fleet")
    val state = File(required("--state"))
    val trusted = values("--trust").flatMap { PublicKey.parse(File(it).readText()) }
    val insecure = values("--insecure").lastOrNull() == "yes"
    val policy = values("--policy").lastOrNull()?.let { Policy.parse(File(it).readText()) }
    val tls = values("--ca").lastOrNull()?.let { TlsFiles.context(File(it)) }
    val password = values("--broker-password-file").lastOrNull()?.let { File(it).readText().trimEnd('\r', '\n') }
    val broker = BrokerAddress.parse(required("--broker"), tls).login(values("--broker-user").lastOrNull(), password)
    fun seconds(name: String) = values(name).lastOrNull()?.let { text ->
        text.toDoubleOrNull()?.takeIf { it > 0 } ?: throw ConfigException("$name must be seconds above 0, got '$text'\n$USAGE")
    }
    val jobMs = seconds("--job-seconds")?.let { (it * 1000).toLong() }
    val checkpointS = seconds("--checkpoint-seconds") ?: Phone.CHECKPOINT_S
    val log = Log { level, line -> System.err.println("${Instant.now()} $level $line") }
    val storage = FolderStorage(state, log, Owner(id, fleet))
    val loader = OwnerThread("shoal-executorch").owned(ExecutorchLoader(File(state, "programs")))
    val windows = readFolder(File(required("--data")))
    val phone = Phone(id, fleet, broker, windows, storage, loader, trusted, insecure, policy, log = log, checkpointS = checkpointS)
    val stopping = AtomicBoolean()
    val ended = CountDownLatch(1)
    Runtime.getRuntime().addShutdownHook(
        thread(start = false) {
            stopping.set(true)
            ended.await()
        },
    )
    try {
        if (jobMs == null) phone.run(stopping::get) else while (!stopping.get()) phone.job(jobMs, jobMs, stop = stopping::get)
    } finally {
        ended.countDown()
    }
}
