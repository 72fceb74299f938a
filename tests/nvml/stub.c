/*
 * A libnvidia-ml.so.1 without GPUs behind it: eight of them, which a test makes fail and recover.
 *
 * It has the entry points that the node agent calls, with the types of NVIDIA's nvml.h. What
 * happens is told by lines that a test writes to the folder in which the library lies, so that
 * each test has GPUs of its own:
 *   events   a FIFO; one line "INDEX XID" is one event, XID 0 a double-bit memory error
 *   lost     indexes of GPUs that have fallen off the bus, one a line
 *   hidden   indexes of GPUs that are not listed at all
 *   recovery lines "INDEX ACTION": what the driver asks for
 *   closed   while it exists the library cannot be opened
 *   opened   written here: one line for each nvmlInit
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <libgen.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GPUS 8
#define SUCCESS 0
#define INVALID_ARGUMENT 2
#define NOT_SUPPORTED 3
#define NOT_FOUND 6
#define DRIVER_NOT_LOADED 9
#define INSUFFICIENT_SIZE 7
#define TIMEOUT 10
#define GPU_IS_LOST 15

#define EVENT_DOUBLE_BIT 2ULL
#define EVENT_XID 8ULL

#define FIELD_REMAPPED_FAILURE 145
#define FIELD_RECOVERY_ACTION 230
#define VALUE_UINT 1

typedef int nvmlReturn_t;
typedef struct device { int index; int registered; } *nvmlDevice_t;
typedef struct event_set { int fifo; char line[64]; size_t used; } *nvmlEventSet_t;

typedef struct {
    char busIdLegacy[16];
    unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;
typedef struct {
    unsigned int version;
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;
typedef struct {
    nvmlDevice_t device;
    unsigned long long eventType, eventData;
    unsigned int gpuInstanceId, computeInstanceId;
} nvmlEventData_t;
typedef union { double d; unsigned int ui; unsigned long ul; unsigned long long ull; long long ll; } nvmlValue_t;
typedef struct {
    unsigned int fieldId, scopeId;
    long long timestamp, latencyUsec;
    int valueType;
    nvmlReturn_t nvmlReturn;
    nvmlValue_t value;
} nvmlFieldValue_t;

static struct device devices[GPUS];

static const char *path(const char *name)
{
    static __thread char library[4096], buffer[4096 + 64];
    Dl_info self;
    if (!dladdr((const void *)path, &self))
        return "/nonexistent";
    snprintf(library, sizeof library, "%s", self.dli_fname);
    snprintf(buffer, sizeof buffer, "%s/%s", dirname(library), name);
    return buffer;
}

/* The value that a file has for an index, or -1. A line without a value counts as 1. */
static int value(const char *name, int index)
{
    FILE *file = fopen(path(name), "r");
    if (!file)
        return -1;
    char line[64];
    int found = -1;
    while (fgets(line, sizeof line, file)) {
        int at = 0, given = 1;
        if (sscanf(line, "%d %d", &at, &given) >= 1 && at == index)
            found = given;
    }
    fclose(file);
    return found;
}

static int listed(int *indexes)
{
    int count = 0;
    for (int index = 0; index < GPUS; index++)
        if (value("hidden", index) < 0)
            indexes[count++] = index;
    return count;
}

static nvmlReturn_t alive(nvmlDevice_t device)
{
    if (!device)
        return INVALID_ARGUMENT;
    return value("lost", device->index) < 0 ? SUCCESS : GPU_IS_LOST;
}

static nvmlReturn_t put(char *to, unsigned int length, const char *text)
{
    if (strlen(text) + 1 > length)
        return INSUFFICIENT_SIZE;
    strcpy(to, text);
    return SUCCESS;
}

static const char *uuid(int index)
{
    static __thread char text[64];
    snprintf(text, sizeof text, "GPU-5a5a5a5a-0000-4000-8000-%012d", index);
    return text;
}

nvmlReturn_t nvmlInit_v2(void)
{
    for (int index = 0; index < GPUS; index++)
        devices[index].index = index;
    FILE *file = fopen(path("opened"), "a");
    if (file) {
        fputs("opened\n", file);
        fclose(file);
    }
    if (access(path("closed"), F_OK) == 0)
        return DRIVER_NOT_LOADED;
    return SUCCESS;
}

nvmlReturn_t nvmlShutdown(void) { return SUCCESS; }

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    return put(version, length, "570.00.00");
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    int indexes[GPUS];
    *count = (unsigned int)listed(indexes);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    int indexes[GPUS];
    if ((int)index >= listed(indexes))
        return INVALID_ARGUMENT;
    *device = &devices[indexes[index]];
    return alive(*device);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *wanted, nvmlDevice_t *device)
{
    for (int index = 0; index < GPUS; index++) {
        if (strcmp(wanted, uuid(index)) == 0 && value("hidden", index) < 0) {
            *device = &devices[index];
            return alive(*device);
        }
    }
    return NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *text, unsigned int length)
{
    return device ? put(text, length, uuid(device->index)) : INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minor)
{
    *minor = (unsigned int)device->index;
    return alive(device);
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    memset(pci, 0, sizeof *pci);
    pci->bus = 0xA0u + (unsigned int)device->index;
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "0000:%02X:00.0", pci->bus);
    snprintf(pci->busId, sizeof pci->busId, "00000000:%02X:00.0", pci->bus);
    return alive(device);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    if (memory->version != (sizeof *memory | 2u << 24))
        return INVALID_ARGUMENT;
    memory->total = 80ULL << 30;
    memory->free = memory->total;
    memory->used = 0;
    return alive(device);
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    (void)device;
    *current = *pending = 0;
    return NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    for (int at = 0; at < count; at++) {
        int recovery = value("recovery", device->index);
        int known = values[at].fieldId == FIELD_RECOVERY_ACTION && recovery >= 0;
        values[at].valueType = VALUE_UINT;
        values[at].nvmlReturn = known ? SUCCESS : NOT_SUPPORTED;
        values[at].value.ui = known ? (unsigned int)recovery : 0;
    }
    return alive(device);
}

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
    *set = calloc(1, sizeof **set);
    /* For reading and writing, so that a test may open and close its end at will. */
    (*set)->fifo = open(path("events"), O_RDWR | O_NONBLOCK | O_CLOEXEC);
    return SUCCESS;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    if (set->fifo >= 0)
        close(set->fifo);
    free(set);
    for (int index = 0; index < GPUS; index++)
        devices[index].registered = 0;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types)
{
    *types = EVENT_XID | EVENT_DOUBLE_BIT;
    return alive(device);
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
    (void)set;
    /* GPU 7 stands for a model that reports no events. */
    if (device->index == 7)
        return NOT_SUPPORTED;
    device->registered = types & EVENT_XID ? 1 : 0;
    return alive(device);
}

/* One line from the FIFO, a byte at a time, so that no second line is taken with it. */
static int line(nvmlEventSet_t set)
{
    while (set->used + 1 < sizeof set->line) {
        char byte;
        if (read(set->fifo, &byte, 1) != 1)
            return 0;
        if (byte == '\n') {
            set->line[set->used] = 0;
            set->used = 0;
            return 1;
        }
        set->line[set->used++] = byte;
    }
    set->used = 0;
    return 0;
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout)
{
    struct pollfd ready = { .fd = set->fifo, .events = POLLIN };
    int index;
    unsigned long long xid;
    if (poll(&ready, 1, (int)timeout) <= 0 || !line(set))
        return TIMEOUT;
    if (strcmp(set->line, "lost") == 0)
        return GPU_IS_LOST;
    if (sscanf(set->line, "%d %llu", &index, &xid) != 2 || index < 0 || index >= GPUS)
        return TIMEOUT;
    if (!devices[index].registered)
        return TIMEOUT;
    memset(data, 0, sizeof *data);
    data->device = &devices[index];
    data->eventType = xid ? EVENT_XID : EVENT_DOUBLE_BIT;
    data->eventData = xid;
    return SUCCESS;
}
