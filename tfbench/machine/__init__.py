"""The machine as its kernel and drivers describe it, without TensorFlow.

Start with `nvml`: it reads a GPU into `results.schema.health.GPUFacts`. `driver_gpus` lists the GPUs and decides which
of them a process may use, with `cuda_devices`; `telemetry` observes them while steps are timed; `cuda_libraries` has
TensorFlow find NVIDIA's libraries; `host` describes the processor and its limits.
"""
