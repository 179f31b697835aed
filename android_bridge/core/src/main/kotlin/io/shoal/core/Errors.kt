package io.shoal.core

import java.util.Locale

/**
 * Base of all errors that Shoal throws on purpose. The tree is that of the Python side
 * (`wire/errors.py`). They are checked exceptions in Java: each depends on the phone, the service
 * or a file, so a correct app meets it, too. A mistake in the app's own code, such as null or a
 * label with a comma, is an unchecked exception of Java's library.
 */
public open class ShoalException(message: String, cause: Throwable? = null) : Exception(printable(message), cause)

/** Windows that cannot be used. */
public class DataException(message: String) : ShoalException(message)

/** A setting that cannot be used. */
public open class ConfigException(message: String, cause: Throwable? = null) : ShoalException(message, cause)

/** There is no model yet on this device. */
public class ModelUnavailableException(message: String) : ShoalException(message)

/** A file or folder that cannot be written, such as on a full disk. */
@InternalShoalApi
public class StorageException(message: String, cause: Throwable? = null) : ConfigException(message, cause)

/** The runtime of the models does not run on this device. */
@InternalShoalApi
public class UnsupportedException(message: String, cause: Throwable? = null) : ConfigException(message, cause)

/** The broker cannot be reached, or refuses the connection. */
@InternalShoalApi
public class LinkException(message: String, cause: Throwable? = null) : ShoalException(message, cause)

/** Something arrived that the protocol does not allow. */
@InternalShoalApi
public open class WireException(message: String) : ShoalException(message)

/** A topic that this protocol version does not have. */
internal class UnknownTopicException(message: String) : WireException(message)

/** Bytes that are not a message of this protocol. */
@InternalShoalApi
public class MalformedException(message: String) : WireException(message)

/** Larger than the limits allow; thrown before memory for it is taken. */
internal class LimitExceededException(message: String) : WireException(message)

/** Tensors whose names, data types or shapes are not those expected. */
internal class WrongLayoutException(message: String) : WireException(message)

/** A message that no trusted key has vouched for. */
internal class UntrustedException(message: String) : WireException(message)

/** A bundle that must not be loaded. */
@InternalShoalApi
public open class BundleException(message: String) : WireException(message)

/** A file's hash, or the manifest's signature, does not fit. */
internal class TamperedBundleException(message: String) : BundleException(message)

/** An older bundle offered in place of a newer one. */
internal class StaleBundleException(message: String) : BundleException(message)

/**
 * Text on one line: control characters, line breaks and lone surrogates are escaped. What came from somebody else can so neither forge a line
 * of a log nor make it unwritable.
 */
internal fun printable(text: String): String {
    if (text.indices.none { isUnprintable(text, it) }) return text
    return buildString {
        for (at in text.indices) if (isUnprintable(text, at)) append("\\u%04x".format(Locale.ROOT, text[at].code)) else append(text[at])
    }
}

private fun isUnprintable(text: String, at: Int): Boolean {
    val c = text[at]
    val lone = when {
        c.isHighSurrogate() -> !(at + 1 < text.length && text[at + 1].isLowSurrogate())
        c.isLowSurrogate() -> !(at > 0 && text[at - 1].isHighSurrogate())
        else -> false
    }
    return lone || Character.isISOControl(c) || c == '\u2028' || c == '\u2029'
}
