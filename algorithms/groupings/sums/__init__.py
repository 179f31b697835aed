"""Groups from sums over devices alone: the server's half (`wire.secret.survey`)."""
