/* A fake libnvidia-ml.so.1: the GPUs of a table, with counters that increase by fixed steps per call.
 *
 * FAKE_NVML is a comma-separated list of faults:
 *   no_energy   the GPUs have no energy counter
 *   lagging     the mean power over the last second is half of the present power
 *   no_instant  the driver knows that mean only
 *   throttled   power and temperature throttle every second sample of the second GPU
 *   shared      another process uses the second GPU
 *   ecc         each reading has one more uncorrected memory error
 *   lost        the driver fails after twelve samples of power
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "machine.h"

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, GPU_IS_LOST = 15 };
enum { POWER_INSTANT = 186, SAMPLES_UNTIL_LOST = 12, SAME_SWITCH = 10, ACROSS_SOCKETS = 50 };

typedef struct { int gpu, slice; } Device;  /* slice NOT_THERE: the whole GPU */
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } Process;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } Pci;
typedef struct { unsigned id, scope; long long at, latency; int kind, status; union { unsigned milliwatts; double wide; } value; } Field;
typedef struct { unsigned processors, engines[5], instance_slices, compute_slices; unsigned long long memory_mib; } Attributes;

static Device whole_gpus[COUNT], slices[COUNT][MAX_SLICES];
static int power_calls;
static unsigned long long energy_millijoules[COUNT];
static unsigned long long reason_calls, ecc_errors;

static int has(const char *word) {
    const char *scenario = getenv("FAKE_NVML");
    return scenario && strstr(scenario, word);
}
static int gone(const Device *d) {
    return (has("lost") && power_calls > SAMPLES_UNTIL_LOST) || (d && gpus[d->gpu].lost);
}
static int whole(const Device *d) { return d->slice == NOT_THERE; }
#define OF(d) (gpus[(d)->gpu])
#define PART(d) (OF(d).slices[(d)->slice])
#define ANSWER(d, statement) do { if (gone(d)) return GPU_IS_LOST; statement; return SUCCESS; } while (0)
/* NVML reports no power, temperature, clocks or links of a slice. */
#define OF_WHOLE_GPU(d, statement) do { if (!whole(d)) return NOT_SUPPORTED; ANSWER(d, statement); } while (0)
#define IF_THERE(d, value, statement) do { if ((value) == NOT_THERE) return NOT_SUPPORTED; ANSWER(d, statement); } while (0)

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    if (getenv("FAKE_NVML_INIT")) return atoi(getenv("FAKE_NVML_INIT"));
    for (int i = 0; i < COUNT; ++i) {
        whole_gpus[i] = (Device){i, NOT_THERE};
        if (!energy_millijoules[i]) energy_millijoules[i] = 1000000 + 4000000ull * i;
        for (int s = 0; s < MAX_SLICES; ++s) slices[i][s] = (Device){i, s};
    }
    return SUCCESS;
}
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { return code == 18 ? "Driver/library version mismatch" : "planted"; }
int nvmlSystemGetDriverVersion(char *text, unsigned n) { ANSWER(NULL, snprintf(text, n, DRIVER)); }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { ANSWER(NULL, *version = CUDA); }
int nvmlDeviceGetCount_v2(unsigned *count) { ANSWER(NULL, *count = THERE); }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, Device **device) {
    if (i >= (unsigned)THERE) return INVALID_ARGUMENT;
    if (gpus[i].lost == 1) return GPU_IS_LOST;
    *device = &whole_gpus[i];
    return gone(NULL) ? GPU_IS_LOST : SUCCESS;
}
int nvmlDeviceGetPciInfo_v3(Device *d, Pci *pci) {  /* known since the driver was loaded, even for a lost GPU */
    memset(pci, 0, sizeof *pci);
    snprintf(pci->bus_id, sizeof pci->bus_id, "0000%s", OF(d).bus_id);
    return SUCCESS;
}
int nvmlDeviceGetName(Device *d, char *text, unsigned n) { ANSWER(d, snprintf(text, n, "%s", OF(d).name)); }
int nvmlDeviceGetUUID(Device *d, char *text, unsigned n) {
    ANSWER(d, snprintf(text, n, "%s", whole(d) ? OF(d).uuid : PART(d).uuid));
}
int nvmlDeviceGetCudaComputeCapability(Device *d, int *major, int *minor) {
    ANSWER(d, (*major = OF(d).major, *minor = OF(d).minor));
}
int nvmlDeviceGetMemoryInfo(Device *d, Memory *m) {
    unsigned long long total = whole(d) ? OF(d).memory_total : PART(d).memory_mib << 20;
    ANSWER(d, (m->total = total, m->used = whole(d) ? OF(d).memory_used : 0, m->free = m->total - m->used));
}
int nvmlDeviceGetUtilizationRates(Device *d, unsigned rates[2]) {
    if (OF(d).mig == 1) return NOT_SUPPORTED;
    OF_WHOLE_GPU(d, (rates[0] = OF(d).utilisation, rates[1] = 0));
}
#define POWER(d, value, statement) do { if ((value) == NOT_THERE) return NOT_SUPPORTED; OF_WHOLE_GPU(d, statement); } while (0)
int nvmlDeviceGetPowerManagementDefaultLimit(Device *d, unsigned *limit) { POWER(d, OF(d).power_default, *limit = OF(d).power_default); }
int nvmlDeviceGetEnforcedPowerLimit(Device *d, unsigned *limit) { POWER(d, OF(d).power_limit, *limit = OF(d).power_limit); }
int nvmlDeviceGetGridLicensableFeatures_v4(Device *d, int *features) {  /* supported, count, code and state of the first */
    IF_THERE(d, OF(d).licensed, (features[0] = features[1] = features[2] = 1, features[3] = OF(d).licensed));
}
int nvmlDeviceGetPowerManagementLimitConstraints(Device *d, unsigned *least, unsigned *most) {
    OF_WHOLE_GPU(d, (*least = OF(d).power_min, *most = OF(d).power_max));
}
int nvmlDeviceGetPowerUsage(Device *d, unsigned *milliwatts) {
    ++power_calls;
    OF_WHOLE_GPU(d, *milliwatts = has("lagging") ? OF(d).power / 2 : OF(d).power);
}
int nvmlDeviceGetFieldValues(Device *d, int count, Field *fields) {
    if (has("no_instant") || count != 1 || fields->id != POWER_INSTANT) return INVALID_ARGUMENT;
    ++power_calls;
    fields->status = whole(d) ? SUCCESS : NOT_SUPPORTED;
    ANSWER(d, fields->value.milliwatts = OF(d).power);
}
int nvmlDeviceGetTotalEnergyConsumption(Device *d, unsigned long long *millijoules) {
    if (has("no_energy")) return NOT_SUPPORTED;
    OF_WHOLE_GPU(d, *millijoules = energy_millijoules[d->gpu] += 50000);
}
int nvmlDeviceGetTemperature(Device *d, unsigned sensor, unsigned *celsius) {
    (void)sensor; OF_WHOLE_GPU(d, *celsius = OF(d).temperature);
}
int nvmlDeviceGetClockInfo(Device *d, unsigned type, unsigned *mhz) { (void)type; OF_WHOLE_GPU(d, *mhz = OF(d).clock); }
int nvmlDeviceGetMaxClockInfo(Device *d, unsigned type, unsigned *mhz) {
    (void)type; OF_WHOLE_GPU(d, *mhz = OF(d).clock_max);
}
int nvmlDeviceGetApplicationsClock(Device *d, unsigned type, unsigned *mhz) {
    (void)type; IF_THERE(d, OF(d).application_clock, *mhz = OF(d).application_clock);
}
int nvmlDeviceGetDefaultApplicationsClock(Device *d, unsigned type, unsigned *mhz) {
    (void)type; IF_THERE(d, OF(d).application_clock, *mhz = OF(d).clock_max);
}
int nvmlDeviceGetCurrentClocksThrottleReasons(Device *d, unsigned long long *reasons) {
    int held = has("throttled") && d->gpu && reason_calls++ % 2 == 0;
    OF_WHOLE_GPU(d, *reasons = held ? 0x4 | 0x20 : OF(d).reasons);
}
int nvmlDeviceGetComputeRunningProcesses_v3(Device *d, unsigned *count, Process *processes) {
    unsigned there = has("shared") && d->gpu ? 1 : whole(d) ? OF(d).processes : 0;
    if (gone(d)) return GPU_IS_LOST;
    if (there && *count == 0) { *count = there; return INSUFFICIENT_SIZE; }
    for (unsigned i = 0; i < there; ++i) {
        memset(&processes[i], 0, sizeof *processes);
        processes[i].pid = OF(d).first_process + i;
        processes[i].used = 1ull << 30;
    }
    *count = there;
    return SUCCESS;
}
int nvmlDeviceGetEccMode(Device *d, unsigned *current, unsigned *pending) {
    int mode = has("ecc") ? 1 : OF(d).ecc;
    IF_THERE(d, mode, *current = *pending = mode);
}
int nvmlDeviceGetTotalEccErrors(Device *d, unsigned type, unsigned counter, unsigned long long *errors) {
    (void)type; (void)counter;
    if (has("ecc")) ANSWER(d, *errors = ecc_errors++);
    IF_THERE(d, OF(d).ecc, *errors = OF(d).ecc_errors);
}
int nvmlDeviceGetRemappedRows(Device *d, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    IF_THERE(d, OF(d).ecc, (*corrected = 0, *uncorrected = OF(d).ecc_errors, *pending = OF(d).rows_pending,
                            *failed = OF(d).rows_failed));
}
int nvmlDeviceGetPersistenceMode(Device *d, unsigned *mode) { OF_WHOLE_GPU(d, *mode = OF(d).persistence); }
int nvmlDeviceGetComputeMode(Device *d, unsigned *mode) { OF_WHOLE_GPU(d, *mode = OF(d).compute_mode); }
int nvmlDeviceGetCurrPcieLinkGeneration(Device *d, unsigned *generation) { OF_WHOLE_GPU(d, *generation = OF(d).generation); }
int nvmlDeviceGetMaxPcieLinkGeneration(Device *d, unsigned *generation) {
    OF_WHOLE_GPU(d, *generation = OF(d).generation_max);
}
int nvmlDeviceGetCurrPcieLinkWidth(Device *d, unsigned *width) { OF_WHOLE_GPU(d, *width = OF(d).width); }
int nvmlDeviceGetMaxPcieLinkWidth(Device *d, unsigned *width) { OF_WHOLE_GPU(d, *width = OF(d).width_max); }
int nvmlDeviceGetMigMode(Device *d, unsigned *current, unsigned *pending) {
    IF_THERE(d, OF(d).mig, *current = *pending = OF(d).mig);
}
int nvmlDeviceGetMaxMigDeviceCount(Device *d, unsigned *count) { ANSWER(d, *count = OF(d).mig == 1 ? 7 : 0); }
int nvmlDeviceGetMigDeviceHandleByIndex(Device *d, unsigned index, Device **slice) {
    if ((int)index >= OF(d).slice_count) return NOT_FOUND;
    ANSWER(d, *slice = &slices[d->gpu][index]);
}
int nvmlDeviceGetAttributes_v2(Device *d, Attributes *a) {
    memset(a, 0, sizeof *a);
    ANSWER(d, (a->instance_slices = PART(d).instance_slices, a->compute_slices = PART(d).compute_slices,
               a->memory_mib = PART(d).memory_mib));
}
int nvmlDeviceGetP2PStatus(Device *a, Device *b, unsigned what, int *status) {
    (void)what; ANSWER(a, *status = OF(a).island == OF(b).island ? 0 : 1);
}
int nvmlDeviceGetTopologyCommonAncestor(Device *a, Device *b, int *level) {
    ANSWER(a, *level = OF(a).island == OF(b).island ? SAME_SWITCH : ACROSS_SOCKETS);
}
int nvmlDeviceGetNvLinkState(Device *d, unsigned link, unsigned *active) {
    if ((int)link >= OF(d).links_up + OF(d).links_down) return INVALID_ARGUMENT;
    ANSWER(d, *active = (int)link < OF(d).links_up);
}
