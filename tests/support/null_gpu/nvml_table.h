/* The table of null GPUs for the fake NVML (tests/support/fake_driver/nvml.c). */
#define DRIVER "570.86.10"
#define CUDA 12080
#define NULL_GPU(n) {.name = "NVIDIA RTX A4000", .uuid = "GPU-6e756c6c-6770-7500-0000-00000000000" #n, .bus_id = "0000:0" BUS_##n ":00.0", \
    .digits = {'n','u','l','l','g','p','u',0,0,0,0,0,0,0,0,n}, .major = 8, .minor = 6, .multiprocessors = 48, \
    .memory_total = 16376ull << 20, .memory_used = 260ull << 20, .power_limit = 140000, .power_default = 140000, \
    .power_min = 100000, .power_max = 140000, .power = 90000, .temperature = 45, .utilisation = 0, .clock = 1560, .clock_max = 2100, \
    .application_clock = -1, .ecc = -1, .persistence = 1, .compute_mode = 0, .mig = -1, .generation = 4, .generation_max = 4, \
    .width = 16, .width_max = 16, .reasons = 0, .first_process = 9999001}
#define BUS_0 "1"
#define BUS_1 "2"
#define BUS_2 "3"
#define BUS_3 "4"
#define BUS_4 "5"
#define BUS_5 "6"
#define BUS_6 "7"
#define BUS_7 "8"
enum { COUNT = 8 };
static Gpu gpus[COUNT] = {NULL_GPU(0), NULL_GPU(1), NULL_GPU(2), NULL_GPU(3), NULL_GPU(4), NULL_GPU(5), NULL_GPU(6), NULL_GPU(7)};
extern int device_count;
extern size_t device_memory;
extern const char *device_name;
#define THERE (make_like_the_devices(), device_count)
static void make_like_the_devices(void) {
    for (int i = 0; i < COUNT; ++i) { gpus[i].name = device_name; gpus[i].memory_total = device_memory + (259ull << 20); }
}
