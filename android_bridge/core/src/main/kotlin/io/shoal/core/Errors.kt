package io.shoal.core

/**
 * Everything that Shoal throws on purpose; the same tree as that of the Python side (`wire/errors.py`).
 *
 * ```
 * ShoalException
 * ├── DataException        windows that cannot be used
 * ├── ConfigException      a setting that cannot be used
 * ├── LinkException        the broker cannot be reached, or refuses the connection
 * └── WireException        something arrived that the protocol does not allow
 *     ├── UnknownTopic     a topic that this protocol version does not have
 *     ├── Malformed        bytes that are no message: wrong JSON, wrong type, wrong value
 *     ├── LimitExceeded    larger than the limits allow; thrown before memory is taken
 *     ├── WrongLayout      tensors whose names, data types or shapes are not those expected
 *     └── BundleException  a bundle that must not be loaded
 *         ├── TamperedBundle   a file's hash, or the signature, does not fit
 *         └── StaleBundle      an older version in place of a newer one
 * ```
 */
public open class ShoalException(message: String, cause: Throwable? = null) : Exception(message, cause)

/** Windows that cannot be used. */
public class DataException(message: String) : ShoalException(message)

/** A setting that cannot be used. */
public class ConfigException(message: String, cause: Throwable? = null) : ShoalException(message, cause)

/** The broker cannot be reached, or refuses the connection. */
public class LinkException(message: String, cause: Throwable? = null) : ShoalException(message, cause)

/** Something arrived that the protocol does not allow. */
public open class WireException(message: String) : ShoalException(message)

/** A topic that this protocol version does not have. */
public class UnknownTopic(message: String) : WireException(message)

/** Bytes that are no message of this protocol. */
public class Malformed(message: String) : WireException(message)

/** Larger than the limits allow; thrown before memory for it is taken. */
public class LimitExceeded(message: String) : WireException(message)

/** Tensors whose names, data types or shapes are not those expected. */
public class WrongLayout(message: String) : WireException(message)

/** A bundle that must not be loaded. */
public open class BundleException(message: String) : WireException(message)

/** A file's hash, or the manifest's signature, does not fit. */
public class TamperedBundle(message: String) : BundleException(message)

/** An older bundle offered in place of a newer one. */
public class StaleBundle(message: String) : BundleException(message)
