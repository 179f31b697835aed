"""Tables as programs write them: texts, Parquet, times, roles of columns, and a user's words."""
