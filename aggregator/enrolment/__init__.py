"""How devices get certificates, and lose them: the service's authority, tokens, renewal, and the
ban at the broker."""
