"""Flags of tf_cnn_benchmarks that tfbench lacks, and what does the same here.

Source: its flags in tensorflow/benchmarks, scripts/tf_cnn_benchmarks/benchmark_cnn.py.
"""

from __future__ import annotations

SAME = {
    "use_fp16": "--precision=fp16",
    "forward_only": "--mode=infer",
    "xla_compile": "--xla=replica",
    "compact_gradient_transfer": "--all_reduce_dtype=fp16",
    "gradient_repacking": "--all_reduce_pack_mb",
    "agg_small_grads_max_bytes": "--all_reduce_pack_mb",
    "agg_small_grads_max_group": "--all_reduce_pack_mb",
    "all_reduce_spec": "--communication between hosts",
    "allow_growth": "--memory_growth",
    "data_name": "--data=tfrecord --data_dir=FOLDER, for ImageNet's format",
    "gpu_indices": "the variable CUDA_VISIBLE_DEVICES",
    "num_epochs": "--num_steps",
    "tf_random_seed": "nothing: synthetic examples have a fixed seed",
    **dict.fromkeys(("job_name", "task_index", "worker_hosts", "ps_hosts"), "--num_hosts and the variable TF_CONFIG"),
}
"""By flag, what to use instead."""

_GROUPS = {
    "replicas always all-reduce their gradients, with NCCL on GPUs": "variable_update variable_consistency "
    "local_parameter_device cross_replica_sync staged_vars hierarchical_copy network_topology allreduce_merge_scope "
    "horovod_device relaxed_sync use_resource_vars force_gpu_compatible",
    "TensorFlow chooses the layout and the algorithm of each kernel": "data_format use_tf_layers winograd_nonfused "
    "batchnorm_persistent enable_layout_optimizer enable_optimizations rewriter_config mkl",
    "fp16 always has float32 variables and a dynamic loss scale": "fp16_vars fp16_loss_scale "
    "fp16_enable_auto_loss_scale fp16_inc_loss_scale_every_n",
    "every step is timed and in the record": "display_every display_perf_ewma print_training_accuracy "
    "loss_type_to_report sync_on_finish",
    "nothing but the record is saved": "train_dir eval_dir backbone_model_path pretrain_dir save_model_secs "
    "save_model_steps save_summaries_steps summary_verbosity benchmark_log_dir benchmark_test_id bigquery_project "
    "graph_file trace_file use_chrome_trace_format tfprof_file partitioned_graph_file_prefix max_ckpts_to_keep",
    "it does not change the speed": "learning_rate init_learning_rate piecewise_learning_rate_schedule "
    "num_epochs_per_decay learning_rate_decay_factor num_learning_rate_warmup_epochs minimum_learning_rate "
    "resnet_base_lr momentum rmsprop_decay rmsprop_momentum rmsprop_epsilon adam_beta1 adam_beta2 adam_epsilon "
    "gradient_clip weight_decay single_l2_loss_op label_smoothing ml_perf ml_perf_compliance_logging",
    "only speed is measured, not accuracy": "eval eval_interval_secs eval_during_training_every_n_steps "
    "eval_during_training_every_n_epochs num_eval_batches num_eval_epochs stop_at_top_1_accuracy",
    "JPEGs are always decoded, cropped, flipped and resized, on all CPUs": "distortions resize_method "
    "input_preprocessor use_datasets datasets_use_prefetch datasets_num_private_threads "
    "datasets_parallel_interleave_cycle_length datasets_parallel_interleave_prefetch datasets_prefetch_buffer_size "
    "datasets_repeat_cached_sample datasets_use_caching datasets_sloppy_parallel_interleave batch_group_size "
    "multi_device_iterator_max_buffer_size use_multi_device_iterator",
    "threads follow from the CPUs of the process": "num_inter_threads num_intra_threads gpu_thread_mode "
    "per_gpu_thread_count kmp_affinity kmp_blocktime kmp_settings",
    "TensorFlow allocates GPU memory as it needs it": "gpu_memory_frac_for_testing use_unified_memory",
    "cuDNN's algorithms are tuned during warm-up": "autotune_threshold",
}
"""By reason, the flags that do not apply."""

NOT_APPLICABLE = {name: reason for reason, names in _GROUPS.items() for name in names.split()}
"""By flag, why it does not apply."""


def advice_on(flag: str) -> str | None:
    """Return what to do about a flag of tf_cnn_benchmarks; None: it is not one.

    Args:
        flag: Without dashes and value; may begin with `no`.
    """
    name = flag.removeprefix("no")
    if name in NOT_APPLICABLE:
        return f"--{flag} is a flag of tf_cnn_benchmarks and does not apply here: {NOT_APPLICABLE[name]}"
    if name in SAME:
        remedy = f"Here, use {SAME[name]}" if flag == name else "Here, leave it out"
        return f"--{flag} is a flag of tf_cnn_benchmarks. {remedy}"
    return None
