/* A libnvidia-ml.so.1 with two GPUs whose readings are lines "name value" of $FAKE_NVML. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, TIMEOUT = 10 };

struct event { void *device; unsigned long long type, data; unsigned gpu, compute; };

static int reading(void *device, const char *name, unsigned long long *value)
{
    char wanted[64], found[64];
    snprintf(wanted, sizeof wanted, "%s%ld", name, (long)device - 1);
    FILE *file = fopen(getenv("FAKE_NVML"), "r");
    int result = NOT_SUPPORTED;
    while (file && fscanf(file, "%63s %llu", found, value) == 2)
        if (!strcmp(found, wanted)) { result = SUCCESS; break; }
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

int nvmlInitWithFlags(unsigned flags) { return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
    *device = (void *)(long)(index + 1);
    return index < 2 ? SUCCESS : 2;
}
int nvmlDeviceGetUUID(void *d, char *uuid, unsigned size)
{
    snprintf(uuid, size, "GPU-0000000%ld-d9cf-fef3-62e9-d92044ab6e52", (long)d - 1);
    return SUCCESS;
}
int nvmlDeviceGetTemperature(void *d, int sensor, unsigned *v) { return small_reading(d, "temp", v); }
int nvmlDeviceGetPowerUsage(void *d, unsigned *v) { return small_reading(d, "milliwatts", v); }
int nvmlDeviceGetUtilizationRates(void *d, unsigned *v) { return small_reading(d, "util", v); }
int nvmlDeviceGetMemoryInfo(void *d, unsigned long long *v) { return reading(d, "mem", v + 2); }
int nvmlDeviceGetTotalEccErrors(void *d, int kind, int counter, unsigned long long *v)
{
    return reading(d, kind ? "uncorrected" : "corrected", v);
}

static void *listening;
int nvmlEventSetCreate(void **set) { *set = (void *)1; return SUCCESS; }
int nvmlDeviceRegisterEvents(void *d, unsigned long long types, void *set)
{
    listening = d;
    return SUCCESS;
}
int nvmlEventSetWait_v2(void *set, struct event *event, unsigned timeout)
{
    static int told;
    if (told || reading(listening, "xid", &event->data)) return TIMEOUT;
    told = 1;
    return SUCCESS;
}
