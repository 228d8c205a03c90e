/* A small libnvidia-ml.so.1 for tests: two GPUs whose counters go up by fixed steps per call.
 *
 * FAKE_NVML names what is wrong with them, separated by commas:
 *   no_energy   the card has no energy counter
 *   throttled   every second sample of the second GPU is held back by power and heat
 *   shared      another process uses the second GPU
 *   ecc         each reading finds one more uncorrected memory error
 *   lost        the driver goes away after twelve samples of power
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, GPU_IS_LOST = 15 };
enum { GPUS = 2, SAMPLES_UNTIL_LOST = 12 };

typedef struct { int index; } Device;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } Process;

static Device devices[GPUS] = {{0}, {1}};
static int power_calls;
static unsigned long long energy_millijoules[GPUS] = {1000000, 5000000};
static unsigned long long reason_calls, ecc_errors;

static int has(const char *word) {
    const char *scenario = getenv("FAKE_NVML");
    return scenario && strstr(scenario, word);
}
static int gone(void) { return has("lost") && power_calls > SAMPLES_UNTIL_LOST; }
#define ANSWER(statement) do { if (gone()) return GPU_IS_LOST; statement; return SUCCESS; } while (0)

int nvmlInitWithFlags(unsigned flags) { (void)flags; return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { (void)code; return "planted"; }
int nvmlSystemGetDriverVersion(char *text, unsigned n) { ANSWER(snprintf(text, n, "550.54.14")); }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { ANSWER(*version = 12040); }
int nvmlDeviceGetCount_v2(unsigned *count) { ANSWER(*count = GPUS); }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, Device **device) { ANSWER(*device = &devices[i]); }
int nvmlDeviceGetName(Device *d, char *text, unsigned n) { (void)d; ANSWER(snprintf(text, n, "Fake A4000")); }
int nvmlDeviceGetUUID(Device *d, char *text, unsigned n) { ANSWER(snprintf(text, n, "GPU-%d", d->index)); }
int nvmlDeviceGetCudaComputeCapability(Device *d, int *major, int *minor) {
    (void)d; ANSWER((*major = 8, *minor = 6));
}
int nvmlDeviceGetMemoryInfo(Device *d, Memory *m) {
    ANSWER((m->total = 16000, m->used = 1000ull * (1 + d->index), m->free = m->total - m->used));
}
int nvmlDeviceGetUtilizationRates(Device *d, unsigned rates[2]) {
    (void)d; ANSWER((rates[0] = d->index ? 87 : 0, rates[1] = 0));
}
int nvmlDeviceGetPowerManagementDefaultLimit(Device *d, unsigned *milliwatts) {
    ANSWER(*milliwatts = d->index ? 200000 : 140000);
}
int nvmlDeviceGetEnforcedPowerLimit(Device *d, unsigned *milliwatts) { (void)d; ANSWER(*milliwatts = 140000); }
int nvmlDeviceGetPowerUsage(Device *d, unsigned *milliwatts) {
    ++power_calls;
    ANSWER(*milliwatts = d->index ? 120000 : 80000);
}
int nvmlDeviceGetTotalEnergyConsumption(Device *d, unsigned long long *millijoules) {
    if (has("no_energy")) return NOT_SUPPORTED;
    ANSWER(*millijoules = energy_millijoules[d->index] += 50000);
}
int nvmlDeviceGetTemperature(Device *d, unsigned sensor, unsigned *celsius) {
    (void)sensor; ANSWER(*celsius = 60 + d->index);
}
int nvmlDeviceGetClockInfo(Device *d, unsigned type, unsigned *mhz) {
    (void)type; ANSWER(*mhz = d->index ? 1200 : 1500);
}
int nvmlDeviceGetMaxClockInfo(Device *d, unsigned type, unsigned *mhz) {
    (void)d; (void)type; ANSWER(*mhz = 2100);
}
int nvmlDeviceGetCurrentClocksThrottleReasons(Device *d, unsigned long long *reasons) {
    int held = has("throttled") && d->index && reason_calls++ % 2 == 0;
    ANSWER(*reasons = held ? 0x4 | 0x20 : 0);
}
int nvmlDeviceGetComputeRunningProcesses_v3(Device *d, unsigned *count, Process *processes) {
    unsigned there = has("shared") && d->index;
    if (gone()) return GPU_IS_LOST;
    if (there && *count == 0) { *count = there; return INSUFFICIENT_SIZE; }
    if (there) memset(processes, 0, sizeof *processes), processes->pid = 4242;
    *count = there;
    return SUCCESS;
}
int nvmlDeviceGetEccMode(Device *d, unsigned *current, unsigned *pending) {
    (void)d; if (!has("ecc")) return NOT_SUPPORTED;
    ANSWER(*current = *pending = 1);
}
int nvmlDeviceGetTotalEccErrors(Device *d, unsigned type, unsigned counter, unsigned long long *errors) {
    (void)d; (void)type; (void)counter; if (!has("ecc")) return NOT_SUPPORTED;
    ANSWER(*errors = ecc_errors++);
}
int nvmlDeviceGetCurrPcieLinkGeneration(Device *d, unsigned *generation) { (void)d; ANSWER(*generation = 4); }
int nvmlDeviceGetCurrPcieLinkWidth(Device *d, unsigned *width) { ANSWER(*width = d->index ? 8 : 16); }
int nvmlDeviceGetMaxPcieLinkWidth(Device *d, unsigned *width) { (void)d; ANSWER(*width = 16); }
