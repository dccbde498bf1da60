"""Captures as tables: SQL over them, and Parquet files of them."""
