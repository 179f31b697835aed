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
import java.util.concurrent.atomic.AtomicInteger
import kotlin.concurrent.thread
import kotlin.system.exitProcess

private const val USAGE = """usage: phone --broker URL --fleet FLEET (--trust FILE | --insecure yes) [--policy FILE] [--ca FILE]
             [--broker-user USER] [--broker-password-file FILE]
             [--job-seconds S] [--checkpoint-seconds S] (--id ID --data FOLDER --state FOLDER) ...

Runs phones on this machine until SIGTERM: the same core and ExecuTorch adapter as in an app. The three last options may be repeated
together, once for each phone; all of them share this process. FILE of --trust has one root key or several, that of --policy what plans
may ask of these phones, as JSON. With --job-seconds each phone runs jobs, one after the other, of at most S seconds, as Android has it; with
--checkpoint-seconds it notes so often how far a plan is. Without --trust every plan and bundle is believed: --insecure yes permits that."""

private val OPTIONS = setOf("--broker", "--fleet", "--trust", "--insecure", "--policy", "--ca", "--broker-user", "--broker-password-file", "--job-seconds", "--checkpoint-seconds", "--id", "--data", "--state")

/** Options of one phone. */
private class Device(val id: String, val data: File, val state: File)

/**
 * Entry point of phones on a desktop machine. A [ShoalException] is reported on one line, with
 * status 2.
 */
public fun main(arguments: Array<String>) {
    try {
        run(arguments.toList())
    } catch (error: ShoalException) {
        System.err.println("error: ${error.message}")
        exitProcess(2)
    }
}

private fun run(arguments: List<String>) {
    val options = arguments.chunked(2)
    options.firstOrNull { it.size < 2 || it[0] !in OPTIONS }?.let {
        throw ConfigException("option ${it[0]} is unknown, or has no value\n$USAGE")
    }
    fun values(name: String) = options.filter { it[0] == name }.map { it[1] }
    fun required(name: String) = values(name).lastOrNull() ?: throw ConfigException("$name is missing\n$USAGE")
    val ids = values("--id")
    if (ids.isEmpty() || values("--data").size != ids.size || values("--state").size != ids.size) {
        throw ConfigException("give --id, --data and --state for each phone\n$USAGE")
    }
    val trusted = values("--trust").flatMap { PublicKey.parse(File(it).readText()) }
    val insecure = values("--insecure").lastOrNull() == "yes"
    val policy = values("--policy").lastOrNull()?.let { Policy.parse(File(it).readText()) }
    val owner = OwnerThread("shoal-executorch")
    val tls = values("--ca").lastOrNull()?.let { TlsFiles.context(File(it)) }
    val password = values("--broker-password-file").lastOrNull()?.let { File(it).readText().trimEnd('\r', '\n') }
    val broker = BrokerAddress.parse(required("--broker"), tls).login(values("--broker-user").lastOrNull(), password)
    fun seconds(name: String) = values(name).lastOrNull()?.let { text ->
        text.toDoubleOrNull()?.takeIf { it > 0 } ?: throw ConfigException("$name must be seconds above 0, got '$text'\n$USAGE")
    }
    val jobMs = seconds("--job-seconds")?.let { (it * 1000).toLong() }
    val checkpointS = seconds("--checkpoint-seconds") ?: Phone.CHECKPOINT_S
    val stopping = AtomicBoolean()
    val failures = AtomicInteger()
    val running = CountDownLatch(ids.size)
    ids.indices.map { Device(ids[it], File(values("--data")[it]), File(values("--state")[it])) }.forEach { device ->
        val windows = readFolder(device.data)
        val loader = owner.owned(ExecutorchLoader(File(device.state, "programs")))
        val log = Log { level, line -> System.err.println("${Instant.now()} $level $line") }
        val storage = FolderStorage(device.state, log, Owner(device.id, required("--fleet")))
        val phone = Phone(device.id, required("--fleet"), broker, windows, storage, loader, trusted, insecure, policy, log = log, checkpointS = checkpointS)
        val stop = { stopping.get() || failures.get() > 0 }
        thread(name = device.id) {
            try {
                if (jobMs == null) phone.run(stop) else while (!stop()) phone.job(jobMs, jobMs, stop = stop)
            } catch (error: ShoalException) {
                System.err.println("error: device ${device.id}: ${error.message}")
                failures.incrementAndGet()
            } catch (error: Throwable) {
                error.printStackTrace()
                failures.incrementAndGet()
            } finally {
                running.countDown()
            }
        }
    }
    Runtime.getRuntime().addShutdownHook(
        thread(start = false) {
            stopping.set(true)
            running.await()
        },
    )
    running.await()
    if (failures.get() > 0) Runtime.getRuntime().halt(2)
}
