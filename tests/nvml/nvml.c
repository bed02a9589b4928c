/* A stand-in for libnvidia-ml.so.1: its cards are what a JSON file says, read anew at each call.
 *
 * The file is named by the environment variable NVML_RIG; tests/nvml/rigs.py writes it. Any function
 * may be told to fail ("errors", by the name of the symbol) or to hang ("hang_ms"), for the machine
 * or for one card. A number that is null or absent is "not supported". Signatures and structures are
 * those of NVIDIA's public nvml.h; nothing here is taken from the driver.
 */

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define API __attribute__((visibility("default")))

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    GPU_IS_LOST = 15,
    ARGUMENT_VERSION_MISMATCH = 25,
    UNKNOWN = 999,
};

#define NOT_AVAILABLE UINT64_MAX
#define MEMORY_V2 0x02000028u

/* 1 + 64 * card + (0 for the card itself, 1 + i for its MIG instance i); never a pointer. */
typedef uintptr_t Device;

typedef struct {
    uint64_t total, free, used;
} Memory;

typedef struct {
    unsigned version;
    uint64_t total, reserved, free, used;
} MemoryV2;

typedef struct {
    unsigned pid;
    uint64_t bytes;
    unsigned gpu_instance, compute_instance;
} Process;

typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
} Pci;

/* The file, and what in it the call is about: the card, and the instance when it is one. */
typedef struct {
    char *text;
    const char *card;
    const char *place;
} Rig;

static atomic_int users;           /* nvmlInit calls without their nvmlShutdown */
static atomic_int is_unknown;      /* the machine has answered "unknown error" */
static atomic_uint_fast64_t lost; /* a bit for each card that was lost */

/* --- JSON: pointers into the text, no tree. NULL is "not there" and may be passed on. ----------- */

static const char *space(const char *p) {
    return p + strspn(p, " \t\r\n");
}

static const char *after_string(const char *p) {
    for (p++; *p && *p != '"'; p++)
        if (*p == '\\' && p[1])
            p++;
    return *p ? p + 1 : p;
}

static const char *after_value(const char *p) {
    int depth = 0;
    do {
        p = space(p);
        if (*p == '"') {
            p = after_string(p);
        } else if (*p == '{' || *p == '[') {
            depth++;
            p++;
        } else if (*p == '}' || *p == ']') {
            depth--;
            p++;
        } else if (*p == ',' || *p == ':') {
            p++;
        } else {
            p += strcspn(p, ",:{}[]\" \t\r\n");
        }
    } while (depth > 0 && *p);
    return p;
}

/* The value of a key, or of an index when `key` is NULL; `p` is at a '{' or a '['. */
static const char *child(const char *p, const char *key, unsigned index) {
    if (!p || *p != (key ? '{' : '['))
        return NULL;
    p = space(p + 1);
    for (unsigned i = 0; *p && *p != '}' && *p != ']'; i++) {
        int found = !key && i == index;
        if (key) {
            size_t length = strlen(key);
            found = *p == '"' && !strncmp(p + 1, key, length) && p[length + 1] == '"';
            p = space(after_value(p));
            p = space(*p == ':' ? p + 1 : p);
        }
        if (found)
            return p;
        p = space(after_value(p));
        p = space(*p == ',' ? p + 1 : p);
    }
    return NULL;
}

static const char *member(const char *p, const char *key) {
    return child(p, key, 0);
}

static const char *element(const char *p, unsigned index) {
    return child(p, NULL, index);
}

static unsigned count_of(const char *array) {
    unsigned count = 0;
    while (element(array, count))
        count++;
    return count;
}

static int number(const char *p, uint64_t *value) {
    if (!p || *p < '0' || *p > '9')
        return NOT_SUPPORTED;
    *value = strtoull(p, NULL, 10);
    return SUCCESS;
}

static uint64_t number_or(const char *p, uint64_t otherwise) {
    uint64_t value;
    return number(p, &value) == SUCCESS ? value : otherwise;
}

/* Copies a string. Of the escapes only those of one byte are known; others stay as they are. */
static int text(const char *p, char *target, unsigned length) {
    unsigned used = 0;
    if (!p || *p != '"')
        return NOT_SUPPORTED;
    for (p++; *p && *p != '"'; p++) {
        if (*p == '\\' && (p[1] == '"' || p[1] == '\\' || p[1] == '/'))
            p++;
        if (used + 1 >= length)
            return INSUFFICIENT_SIZE;
        target[used++] = *p;
    }
    if (!length)
        return INSUFFICIENT_SIZE;
    target[used] = 0;
    return SUCCESS;
}

/* --- The rig ----------------------------------------------------------------------------------- */

static char *rig_text(void) {
    const char *path = getenv("NVML_RIG");
    FILE *file = path ? fopen(path, "rb") : NULL;
    char *content = NULL;
    long size;
    if (!file)
        return NULL;
    if (!fseek(file, 0, SEEK_END) && (size = ftell(file)) >= 0 && !fseek(file, 0, SEEK_SET)) {
        content = malloc((size_t)size + 1);
        if (content)
            content[fread(content, 1, (size_t)size, file)] = 0;
    }
    fclose(file);
    return content;
}

static int find(Device device, Rig *rig) {
    const char *root;
    rig->card = rig->place = NULL;
    rig->text = rig_text();
    if (!rig->text)
        return DRIVER_NOT_LOADED;
    root = space(rig->text);
    if (!device)
        return SUCCESS;
    rig->card = element(member(root, "cards"), (unsigned)((device - 1) / 64));
    rig->place = rig->card;
    if ((device - 1) % 64)
        rig->place = element(member(rig->card, "instances"), (unsigned)((device - 1) % 64 - 1));
    return rig->place ? SUCCESS : INVALID_ARGUMENT;
}

static uint64_t told_by(const char *place, const char *what, const char *function) {
    return number_or(member(member(place, what), function), 0);
}

/* What the machine, the card or the instance says of a function, under "errors" or "hang_ms". */
static uint64_t told(const Rig *rig, const char *what, const char *function) {
    uint64_t value = told_by(rig->text ? space(rig->text) : NULL, what, function);
    if (!value)
        value = told_by(rig->card, what, function);
    if (!value && rig->place != rig->card)
        value = told_by(rig->place, what, function);
    return value;
}

/* The error that is told, remembered where the driver's library would remember it. */
static int told_error(const Rig *rig, Device device, const char *function) {
    uint64_t bit = device ? (uint64_t)1 << ((device - 1) / 64 % 64) : 0;
    int code = (int)told(rig, "errors", function);
    if (!strncmp(function, "nvmlInit", 8) || !strcmp(function, "nvmlShutdown"))
        return code;
    if (told_by(rig->text ? space(rig->text) : NULL, "errors", function) == UNKNOWN)
        atomic_store(&is_unknown, 1);
    if (device && code == GPU_IS_LOST)
        atomic_fetch_or(&lost, bit);
    if (atomic_load(&is_unknown))
        return UNKNOWN;
    return atomic_load(&lost) & bit ? GPU_IS_LOST : code;
}

static uint64_t milliseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* Reads the rig for a call, hangs as long as it says, and gives the call's error or SUCCESS. */
static int enter(const char *function, Device device, Rig *rig) {
    const struct timespec pause = {0, 5000000};
    uint64_t began = milliseconds();
    int code = find(device, rig), failure;
    while (milliseconds() - began < told(rig, "hang_ms", function)) {
        free(rig->text);
        nanosleep(&pause, NULL);
        code = find(device, rig);
    }
    failure = told_error(rig, device, function);
    if (failure)
        return failure;
    if (!atomic_load(&users) && strncmp(function, "nvmlInit", 8))
        return UNINITIALIZED;
    return code;
}

static int leave(Rig *rig, int code) {
    free(rig->text);
    return code;
}

static int is_instance(Device device) {
    return (device - 1) % 64 != 0;
}

/* --- The machine ------------------------------------------------------------------------------- */

static int begin(const char *function) {
    Rig rig;
    int code = enter(function, 0, &rig);
    if (code == SUCCESS)
        atomic_fetch_add(&users, 1);
    return leave(&rig, code);
}

API int nvmlInit_v2(void) {
    return begin(__func__);
}

API int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    return begin(__func__);
}

API int nvmlShutdown(void) {
    Rig rig;
    int code = enter(__func__, 0, &rig);
    if (code == SUCCESS && atomic_fetch_sub(&users, 1) == 1) {
        atomic_store(&is_unknown, 0);
        atomic_store(&lost, 0);
    }
    return leave(&rig, code);
}

API const char *nvmlErrorString(int code) {
    return code ? "an error of the stand-in" : "Success";
}

API int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    Rig rig;
    int code = enter(__func__, 0, &rig);
    if (code == SUCCESS)
        code = text(member(space(rig.text), "driver"), version, length);
    return leave(&rig, code);
}

API int nvmlDeviceGetCount_v2(unsigned *count) {
    Rig rig;
    int code = enter(__func__, 0, &rig);
    if (code == SUCCESS)
        *count = count_of(member(space(rig.text), "cards"));
    return leave(&rig, code);
}

/* --- One card or instance ---------------------------------------------------------------------- */

API int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *device) {
    Rig rig;
    int code = enter(__func__, 1 + 64 * (Device)index, &rig);
    *device = 1 + 64 * (Device)index;
    return leave(&rig, code);
}

API int nvmlDeviceGetName(Device device, char *name, unsigned length) {
    Rig rig;
    int code = enter(__func__, device, &rig);
    if (code == SUCCESS)
        code = text(member(rig.place, "name"), name, length);
    return leave(&rig, code);
}

API int nvmlDeviceGetUUID(Device device, char *uuid, unsigned length) {
    Rig rig;
    int code = enter(__func__, device, &rig);
    if (code == SUCCESS)
        code = text(member(rig.place, "uuid"), uuid, length);
    return leave(&rig, code);
}

API int nvmlDeviceGetPciInfo_v3(Device device, Pci *pci) {
    Rig rig;
    int code = enter(__func__, device, &rig);
    if (code == SUCCESS && is_instance(device))
        code = INVALID_ARGUMENT;
    if (code == SUCCESS) {
        memset(pci, 0, sizeof *pci);
        code = text(member(rig.card, "pci"), pci->bus_id, sizeof pci->bus_id);
    }
    return leave(&rig, code);
}

/* `used` is without what the driver keeps, as in the second version of the function. */
static int memory_of(const Rig *rig, MemoryV2 *memory) {
    int code = number(member(rig->place, "total"), &memory->total);
    if (code == SUCCESS)
        code = number(member(rig->place, "used"), &memory->used);
    if (code == SUCCESS)
        code = number(member(rig->place, "free"), &memory->free);
    if (code == SUCCESS)
        memory->reserved = memory->total - memory->used - memory->free;
    return code;
}

API int nvmlDeviceGetMemoryInfo(Device device, Memory *memory) {
    Rig rig;
    MemoryV2 told_memory = {0};
    int code = enter(__func__, device, &rig);
    if (code == SUCCESS)
        code = memory_of(&rig, &told_memory);
    if (code == SUCCESS) {
        memory->total = told_memory.total;
        memory->free = told_memory.free;
        memory->used = told_memory.total - told_memory.free;
    }
    return leave(&rig, code);
}

API int nvmlDeviceGetMemoryInfo_v2(Device device, MemoryV2 *memory) {
    Rig rig;
    int code = enter(__func__, device, &rig);
    if (code == SUCCESS && memory->version != MEMORY_V2)
        code = ARGUMENT_VERSION_MISMATCH;
    if (code == SUCCESS)
        code = memory_of(&rig, memory);
    return leave(&rig, code);
}

API int nvmlDeviceGetCudaComputeCapability(Device device, int *major, int *minor) {
    Rig rig;
    uint64_t value[2];
    int code = enter(__func__, device, &rig);
    for (unsigned i = 0; code == SUCCESS && i < 2; i++)
        code = number(element(member(rig.card, "capability"), i), &value[i]);
    if (code == SUCCESS) {
        *major = (int)value[0];
        *minor = (int)value[1];
    }
    return leave(&rig, code);
}

API int nvmlDeviceGetComputeMode(Device device, unsigned *mode) {
    Rig rig;
    int code = enter(__func__, device, &rig);
    if (code == SUCCESS)
        *mode = (unsigned)number_or(member(rig.card, "compute_mode"), 0);
    return leave(&rig, code);
}

/* --- MIG --------------------------------------------------------------------------------------- */

API int nvmlDeviceGetMigMode(Device device, unsigned *current, unsigned *pending) {
    Rig rig;
    uint64_t mode = 0;
    int code = enter(__func__, device, &rig);
    if (code == SUCCESS && is_instance(device))
        code = INVALID_ARGUMENT;
    if (code == SUCCESS)
        code = number(member(rig.card, "mig"), &mode);
    *current = *pending = (unsigned)mode;
    return leave(&rig, code);
}

API int nvmlDeviceGetMaxMigDeviceCount(Device device, unsigned *count) {
    Rig rig;
    int code = enter(__func__, device, &rig);
    if (code == SUCCESS)
        *count = 7; /* of every card that has MIG, whatever it is cut into */
    return leave(&rig, code);
}

API int nvmlDeviceGetMigDeviceHandleByIndex(Device device, unsigned index, Device *instance) {
    Rig rig;
    int code = enter(__func__, device, &rig);
    if (code == SUCCESS) {
        const char *place = element(member(rig.card, "instances"), index);
        code = place && *place == '{' ? SUCCESS : NOT_FOUND;
    }
    *instance = device + 1 + index;
    return leave(&rig, code);
}

/* --- Processes --------------------------------------------------------------------------------- */

static int processes(const char *function, const char *kind, Device device, unsigned *count,
                     Process *list) {
    Rig rig;
    unsigned room = *count;
    int code = enter(function, device, &rig);
    const char *array = member(rig.place, kind);
    if (code == SUCCESS && (!array || *array != '['))
        code = NOT_SUPPORTED;
    if (code == SUCCESS) {
        *count = count_of(array);
        if (*count > room || (*count && !list))
            code = INSUFFICIENT_SIZE;
    }
    for (unsigned i = 0; code == SUCCESS && i < *count; i++) {
        const char *process = element(array, i);
        list[i].pid = (unsigned)number_or(member(process, "pid"), 0);
        list[i].bytes = number_or(member(process, "bytes"), NOT_AVAILABLE);
        list[i].gpu_instance = list[i].compute_instance = UINT32_MAX;
    }
    return leave(&rig, code);
}

API int nvmlDeviceGetComputeRunningProcesses_v2(Device device, unsigned *count, Process *list) {
    return processes(__func__, "compute", device, count, list);
}

API int nvmlDeviceGetComputeRunningProcesses_v3(Device device, unsigned *count, Process *list) {
    return processes(__func__, "compute", device, count, list);
}

API int nvmlDeviceGetGraphicsRunningProcesses_v2(Device device, unsigned *count, Process *list) {
    return processes(__func__, "graphics", device, count, list);
}

API int nvmlDeviceGetGraphicsRunningProcesses_v3(Device device, unsigned *count, Process *list) {
    return processes(__func__, "graphics", device, count, list);
}
