"""Formats of others: written (CSV, JSON, MLPerf logs) and read (`tf_cnn_benchmarks`)."""
