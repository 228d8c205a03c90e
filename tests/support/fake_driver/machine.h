/* The GPUs of a fake machine; tests/support/fake_driver/__init__.py writes the table that is compiled in as TABLE. */
enum { MAX_SLICES = 8, NOT_THERE = -1 };

typedef struct {
    const char *uuid;            /* as printed by the driver */
    unsigned char digits[16];    /* as returned by CUDA */
    unsigned long long memory_mib;
    unsigned instance_slices, compute_slices;
} Slice;

typedef struct {
    const char *name, *uuid, *bus_id;
    unsigned char digits[16];
    int lost;                    /* 0; 1: no handle; 2: a handle whose calls fail */
    int major, minor, multiprocessors;
    unsigned long long memory_total, memory_used;
    int power_limit, power_default;
    unsigned power_min, power_max, power, temperature, utilisation; /* milliwatts */
    unsigned clock, clock_max;
    int application_clock;
    int ecc, ecc_errors, rows_pending, rows_failed;
    int persistence, compute_mode, mig;
    unsigned generation, generation_max, width, width_max;
    unsigned long long reasons;
    unsigned processes, first_process;
    int links_up, links_down, island;
    int licensed;                /* of a vGPU */
    int slice_count;
    Slice slices[MAX_SLICES];
} Gpu;

#include TABLE
#ifndef THERE
#define THERE COUNT              /* number of the table's GPUs in the machine */
#endif
