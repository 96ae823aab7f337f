/* A libnvidia-ml.so.1 with two GPUs whose readings are lines "name value" of $FAKE_NVML.

   A value "!N" is the error N; a reading without a line is not supported. Each reading is noted in
   $FAKE_NVML.calls. It lacks what drivers before 535 lack. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, TIMEOUT = 10, OF_MIG = 100, ALL = -1 };

struct event { void *device; unsigned long long type, data; unsigned gpu, compute; };
struct field {
    unsigned id, scope;
    long long at, latency;
    int type, result;
    unsigned long long value;
};

static int reading(void *device, const char *name, unsigned long long *value)
{
    char wanted[64], found[64], text[32], calls[512];
    snprintf(wanted, sizeof wanted, "%s%ld", name, (long)device - 1);
    snprintf(calls, sizeof calls, "%s.calls", getenv("FAKE_NVML"));
    FILE *file = fopen(calls, "a");
    fprintf(file, "%s\n", wanted);
    fclose(file);
    file = fopen(getenv("FAKE_NVML"), "r");
    int result = NOT_SUPPORTED;
    while (file && fscanf(file, "%63s %31s", found, text) == 2)
        if (!strcmp(found, wanted)) {
            result = text[0] == '!' ? atoi(text + 1) : SUCCESS;
            *value = strtoull(text, NULL, 10);
            break;
        }
    if (file) fclose(file);
    return result;
}

static int small_reading(void *device, const char *name, unsigned *value)
{
    unsigned long long wide = 0;
    int result = reading(device, name, &wide);
    *value = (unsigned)wide;
    return result;
}

static int named_reading(void *device, const char *name, int number, unsigned *value)
{
    char full[64];
    snprintf(full, sizeof full, "%s%d_", name, number);
    return small_reading(device, full, value);
}

int nvmlInitWithFlags(unsigned flags) { return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return SUCCESS; }
int nvmlDeviceGetIndex(void *d, unsigned *index) { *index = (long)d - 1; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
    *device = (void *)(long)(index + 1);
    return index < 2 ? SUCCESS : 2;
}
/* The MIG instance N of GPU 0 is MIG-N, GPU N is GPU-0000000N-... */
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device)
{
    int number = uuid[0] == 'M' ? OF_MIG + atoi(uuid + 4) : uuid[11] - '0';
    *device = (void *)(long)(number + 1);
    return SUCCESS;
}
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *mig, void **device)
{
    *device = (void *)1;
    return SUCCESS;
}
int nvmlDeviceGetGpuInstanceId(void *mig, unsigned *id)
{
    *id = (unsigned)((long)mig - OF_MIG - 1);
    return SUCCESS;
}
int nvmlDeviceGetUUID(void *d, char *uuid, unsigned size)
{
    snprintf(uuid, size, "GPU-0000000%ld-d9cf-fef3-62e9-d92044ab6e52", (long)d - 1);
    return SUCCESS;
}
int nvmlDeviceGetTemperature(void *d, int sensor, unsigned *v) { return small_reading(d, "temp", v); }
int nvmlDeviceGetTemperatureThreshold(void *d, int of, unsigned *v)
{
    return named_reading(d, "threshold", of, v);
}
int nvmlDeviceGetMarginTemperature(void *d, unsigned *v) { return small_reading(d, "margin", v + 1); }
int nvmlDeviceGetPowerUsage(void *d, unsigned *v) { return small_reading(d, "milliwatts", v); }
int nvmlDeviceGetEnforcedPowerLimit(void *d, unsigned *v) { return small_reading(d, "limit", v); }
int nvmlDeviceGetUtilizationRates(void *d, unsigned *v)
{
    v[1] = 50;
    return small_reading(d, "util", v);
}
int nvmlDeviceGetMemoryInfo(void *d, unsigned long long *v)
{
    v[0] = 4096;
    return reading(d, "mem", v + 2);
}
int nvmlDeviceGetClockInfo(void *d, int of, unsigned *v) { return named_reading(d, "clock", of, v); }
int nvmlDeviceGetCurrentClocksThrottleReasons(void *d, unsigned long long *v)
{
    return reading(d, "throttle", v);
}
int nvmlDeviceGetTotalEccErrors(void *d, int kind, int counter, unsigned long long *v)
{
    const char *names[] = {"corrected", "uncorrected", "ever_corrected", "ever_uncorrected"};
    return reading(d, names[2 * counter + kind], v);
}
int nvmlDeviceGetRemappedRows(void *d, unsigned *cor, unsigned *unc, unsigned *pending, unsigned *bad)
{
    *cor = 1, *unc = 2, *pending = 0;
    return small_reading(d, "remap_failed", bad);
}
int nvmlDeviceGetPcieThroughput(void *d, int way, unsigned *v)
{
    return named_reading(d, "pcie", way, v);
}
int nvmlDeviceGetFieldValues(void *d, int count, struct field *fields)
{
    char name[64];
    for (struct field *f = fields; f < fields + count; f++) {
        snprintf(name, sizeof name, "%sfield%u_", f->scope == ALL ? "all_" : "", f->id);
        f->type = 3;
        f->result = reading(d, name, &f->value);
    }
    return SUCCESS;
}

static void *listening;
int nvmlEventSetCreate(void **set) { *set = (void *)1; return SUCCESS; }
int nvmlDeviceRegisterEvents(void *d, unsigned long long types, void *set)
{
    unsigned long long error;
    int result = reading(d, "events", &error);
    listening = d;
    return result == NOT_SUPPORTED ? SUCCESS : result;
}
/* An event as long as $FAKE_NVML has another Xid than the last; with xids0 N, N in each sample. */
int nvmlEventSetWait_v2(void *set, struct event *event, unsigned timeout)
{
    static unsigned long long last, sent;
    unsigned long long instance = ALL, many;
    if (!reading(listening, "xids", &many)) {
        event->data = 1000 + sent;
        event->gpu = ALL;
        return sent++ % (many + 1) == many ? TIMEOUT : SUCCESS;
    }
    if (reading(listening, "xid", &event->data) || event->data == last) return TIMEOUT;
    reading(listening, "xid_instance", &instance);
    event->gpu = (unsigned)instance;
    last = event->data;
    return SUCCESS;
}
