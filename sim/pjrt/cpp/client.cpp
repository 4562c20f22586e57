// The API's functions for errors, the client, its devices and memories; the API's table; and the
// functions that Python calls.
#include "functions.hpp"

#include <cstring>
#include <pthread.h>

namespace systolith::pjrt {

Client& chip() {
    // Never destroyed, because JAX may call after the end of main.
    static Client* client = new Client;
    return *client;
}

namespace {

// Results that are text.
void say(const std::string& text, const char*& data, size_t& size) {
    data = text.data();
    size = text.size();
}

void error_destroy(Error_Destroy_Args* args) { delete args->error; }

void error_message(Error_Message_Args* args) {
    say(args->error->status.message, args->message, args->message_size);
}

Error* error_code(Error_GetCode_Args* args) {
    args->code = args->error->status.code;
    return nullptr;
}

Error* unimplemented(void*) {
    return refuse(kUnimplemented, "systolith does not have this function of the PJRT API");
}

Error* nothing_to_do(void*) { return nullptr; }

Error* plugin_attributes(Plugin_Attributes_Args* args) {
    args->attributes = nullptr;
    args->num_attributes = 0;
    return nullptr;
}

// The client, which is also the topology

Error* client_create(Client_Create_Args* args) {
    args->client = &chip();
    return nullptr;
}

Error* client_platform_name(Client_PlatformName_Args* args) {
    say(args->client->platform, args->platform_name, args->platform_name_size);
    return nullptr;
}

Error* client_process_index(Client_ProcessIndex_Args* args) {
    args->process_index = 0;
    return nullptr;
}

Error* client_platform_version(Client_PlatformVersion_Args* args) {
    say(args->client->version, args->platform_version, args->platform_version_size);
    return nullptr;
}

Error* client_topology(Client_TopologyDescription_Args* args) {
    args->topology = args->client;
    return nullptr;
}

Error* client_devices(Client_Devices_Args* args) {
    args->devices = args->client->devices.data();
    args->num_devices = args->client->devices.size();
    return nullptr;
}

Error* client_addressable_devices(Client_AddressableDevices_Args* args) {
    args->addressable_devices = args->client->devices.data();
    args->num_addressable_devices = args->client->devices.size();
    return nullptr;
}

Error* no_device(int id) {
    return refuse(kInvalidArgument, "device must be a core, from 0 to " +
                                        std::to_string(chip().devices.size() - 1) + ", not " +
                                        std::to_string(id));
}

Error* client_lookup_device(Client_LookupDevice_Args* args) {
    args->device = args->client->device(args->id);
    return args->device ? nullptr : no_device(args->id);
}

Error* client_lookup_addressable_device(Client_LookupAddressableDevice_Args* args) {
    args->addressable_device = args->client->device(args->local_hardware_id);
    return args->addressable_device ? nullptr : no_device(args->local_hardware_id);
}

Error* client_memories(Client_AddressableMemories_Args* args) {
    args->addressable_memories = args->client->memories.data();
    args->num_addressable_memories = args->client->memories.size();
    return nullptr;
}

Error* client_default_assignment(Client_DefaultDeviceAssignment_Args* args) {
    size_t wanted = size_t(args->num_replicas) * size_t(args->num_partitions);
    if (wanted > args->client->devices.size() || wanted > args->default_assignment_size)
        return refuse(kInvalidArgument, "program must be for at most " +
                                            std::to_string(args->client->devices.size()) +
                                            " devices, the cores, not " + std::to_string(wanted));
    for (size_t number = 0; number < wanted; ++number)
        args->default_assignment[number] = int(number);
    return nullptr;
}

Error* topology_platform_name(TopologyDescription_PlatformName_Args* args) {
    say(args->topology->platform, args->platform_name, args->platform_name_size);
    return nullptr;
}

Error* topology_platform_version(TopologyDescription_PlatformVersion_Args* args) {
    say(args->topology->version, args->platform_version, args->platform_version_size);
    return nullptr;
}

Error* topology_devices(TopologyDescription_GetDeviceDescriptions_Args* args) {
    args->descriptions = args->topology->devices.data();
    args->num_descriptions = args->topology->devices.size();
    return nullptr;
}

Error* topology_attributes(TopologyDescription_Attributes_Args* args) {
    args->attributes = nullptr;
    args->num_attributes = 0;
    return nullptr;
}

// Devices

Error* device_id(DeviceDescription_Id_Args* args) {
    args->id = args->device_description->id;
    return nullptr;
}

Error* device_process_index(DeviceDescription_ProcessIndex_Args* args) {
    args->process_index = 0;
    return nullptr;
}

Error* device_attributes(DeviceDescription_Attributes_Args* args) {
    args->attributes = args->device_description->attributes.data();
    args->num_attributes = args->device_description->attributes.size();
    return nullptr;
}

Error* device_kind(DeviceDescription_Kind_Args* args) {
    say(args->device_description->kind, args->device_kind, args->device_kind_size);
    return nullptr;
}

Error* device_debug_string(DeviceDescription_DebugString_Args* args) {
    say(args->device_description->text, args->debug_string, args->debug_string_size);
    return nullptr;
}

Error* device_to_string(DeviceDescription_ToString_Args* args) {
    say(args->device_description->text, args->to_string, args->to_string_size);
    return nullptr;
}

Error* device_description(Device_GetDescription_Args* args) {
    args->device_description = args->device;
    return nullptr;
}

Error* device_is_addressable(Device_IsAddressable_Args* args) {
    args->is_addressable = true;
    return nullptr;
}

Error* device_hardware_id(Device_LocalHardwareId_Args* args) {
    args->local_hardware_id = args->device->id;
    return nullptr;
}

Error* device_memories(Device_AddressableMemories_Args* args) {
    args->memories = args->device->memories;
    args->num_memories = 1;
    return nullptr;
}

Error* device_default_memory(Device_DefaultMemory_Args* args) {
    args->memory = &args->device->memory;
    return nullptr;
}

Error* device_memory_stats(Device_MemoryStats_Args* args) {
    MemoryStats stats = chip().stats(args->device->chip);
    args->bytes_in_use = stats.in_use;
    args->peak_bytes_in_use = {stats.peak, true};
    args->num_allocs = {stats.allocations, true};
    args->largest_alloc_size = {stats.largest, true};
    args->bytes_limit = {stats.limit, true};
    args->largest_free_block_bytes = {stats.largest_free, true};
    for (OptionalCount* unknown :
         {&args->bytes_reserved, &args->peak_bytes_reserved, &args->bytes_reservable_limit,
          &args->pool_bytes, &args->peak_pool_bytes})
        *unknown = {0, false};
    return nullptr;
}

// Memories

Error* memory_id(Memory_Id_Args* args) {
    args->id = args->memory->id;
    return nullptr;
}

Error* memory_kind(Memory_Kind_Args* args) {
    static const std::string kind = "device";
    say(kind, args->kind, args->kind_size);
    return nullptr;
}

Error* memory_kind_id(Memory_Kind_Id_Args* args) {
    args->kind_id = 0;
    return nullptr;
}

Error* memory_debug_string(Memory_DebugString_Args* args) {
    say(args->memory->text, args->debug_string, args->debug_string_size);
    return nullptr;
}

Error* memory_to_string(Memory_ToString_Args* args) {
    say(args->memory->text, args->to_string, args->to_string_size);
    return nullptr;
}

Error* memory_devices(Memory_AddressableByDevices_Args* args) {
    args->devices = args->memory->device->devices;
    args->num_devices = 1;
    return nullptr;
}

Error* context_create(ExecuteContext_Create_Args* args) {
    args->context = &chip();
    return nullptr;
}

}  // namespace

void add_client(Api& api) {
    put<error_destroy>(api, Index::Error_Destroy);
    put<error_message>(api, Index::Error_Message);
    put<error_code>(api, Index::Error_GetCode);
    put<nothing_to_do>(api, Index::Plugin_Initialize);
    put<plugin_attributes>(api, Index::Plugin_Attributes);
    put<client_create>(api, Index::Client_Create);
    put<nothing_to_do>(api, Index::Client_Destroy);
    put<client_platform_name>(api, Index::Client_PlatformName);
    put<client_process_index>(api, Index::Client_ProcessIndex);
    put<client_platform_version>(api, Index::Client_PlatformVersion);
    put<client_topology>(api, Index::Client_TopologyDescription);
    put<client_devices>(api, Index::Client_Devices);
    put<client_addressable_devices>(api, Index::Client_AddressableDevices);
    put<client_lookup_device>(api, Index::Client_LookupDevice);
    put<client_lookup_addressable_device>(api, Index::Client_LookupAddressableDevice);
    put<client_memories>(api, Index::Client_AddressableMemories);
    put<client_default_assignment>(api, Index::Client_DefaultDeviceAssignment);
    put<nothing_to_do>(api, Index::TopologyDescription_Destroy);
    put<topology_platform_name>(api, Index::TopologyDescription_PlatformName);
    put<topology_platform_version>(api, Index::TopologyDescription_PlatformVersion);
    put<topology_devices>(api, Index::TopologyDescription_GetDeviceDescriptions);
    put<topology_attributes>(api, Index::TopologyDescription_Attributes);
    put<device_id>(api, Index::DeviceDescription_Id);
    put<device_process_index>(api, Index::DeviceDescription_ProcessIndex);
    put<device_attributes>(api, Index::DeviceDescription_Attributes);
    put<device_kind>(api, Index::DeviceDescription_Kind);
    put<device_debug_string>(api, Index::DeviceDescription_DebugString);
    put<device_to_string>(api, Index::DeviceDescription_ToString);
    put<device_description>(api, Index::Device_GetDescription);
    put<device_is_addressable>(api, Index::Device_IsAddressable);
    put<device_hardware_id>(api, Index::Device_LocalHardwareId);
    put<device_memories>(api, Index::Device_AddressableMemories);
    put<device_default_memory>(api, Index::Device_DefaultMemory);
    put<device_memory_stats>(api, Index::Device_MemoryStats);
    put<memory_id>(api, Index::Memory_Id);
    put<memory_kind>(api, Index::Memory_Kind);
    put<memory_kind_id>(api, Index::Memory_Kind_Id);
    put<memory_debug_string>(api, Index::Memory_DebugString);
    put<memory_to_string>(api, Index::Memory_ToString);
    put<memory_devices>(api, Index::Memory_AddressableByDevices);
    put<context_create>(api, Index::ExecuteContext_Create);
    put<nothing_to_do>(api, Index::ExecuteContext_Destroy);
}

namespace {

Api make_table() {
    Api api{};
    api.head.struct_size = sizeof(Api);
    api.version = {{sizeof api.version, nullptr}, kMajor, kMinor};
    for (Function& function : api.functions)
        function = reinterpret_cast<Function>(unimplemented);
    add_client(api);
    add_buffers(api);
    add_executables(api);
    return api;
}

// Takes all locks, so that the child of a fork does not inherit one that another thread holds.
void before_fork() {
    for (Queue& queue : chip().queues) queue.mutex.lock();
    Completion::mutex.lock();
}

void after_fork_in_parent() {
    Completion::mutex.unlock();
    for (Queue& queue : chip().queues) queue.mutex.unlock();
}

void after_fork_in_child() {
    Completion::abandoned = {kFailedPrecondition,
                             "the process was forked: the chip belongs to its parent. Start "
                             "processes by spawn, or fork before JAX's first use"};
    Completion::mutex.unlock();
    for (Queue& queue : chip().queues) {
        queue.abandon(Completion::abandoned);
        queue.mutex.unlock();
    }
}

}  // namespace
}  // namespace systolith::pjrt

using namespace systolith::pjrt;

#define EXPORT extern "C" __attribute__((visibility("default")))

// The entry point that jaxlib looks up.
EXPORT const Api* GetPjrtApi() {
    static const Api api = make_table();
    return &api;
}

// Functions that sim/pjrt/library.py calls.

// Describes the chips of a torus, once, before the client is made.
EXPORT void systolith_describe(int width, int height, int cores, const char* kind,
                               const char* version) {
    bool pod = width * height > 1;
    for (int number = 0; number < width * height; ++number)
        for (int core = 0; core < cores; ++core)
            chip().add_device(kind, {core, number, number % width, number / width, pod});
    chip().version = version;
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

// Waits for the next job of a queue and takes it; returns 0 after systolith_close.
EXPORT int systolith_next(int queue, JobView* view) { return chip().queues[queue].next(view); }

// Completes a job; code 0 is success.
EXPORT void systolith_finish(Job* job, int code, const char* message, size_t size) {
    if (!job->completion) return;
    job->completion->finish({code, std::string(message, size)}, [job, code] {
        if (job->to && code == 0) std::memcpy(job->to, job->owned.data(), job->owned.size());
    });
}

// Passes the result of a compilation, before systolith_finish. There are four texts: name,
// fingerprint, program, and device assignment; `sizes` are their lengths in bytes.
EXPORT void systolith_answer(Job* job, const int64_t* numbers, int64_t count,
                             const char* const* texts, const int64_t* sizes) {
    job->answer.assign(numbers, numbers + count);
    std::string* targets[] = {&job->name, &job->fingerprint, &job->program, &job->assignment};
    for (int number = 0; number < 4; ++number)
        targets[number]->assign(texts[number], size_t(sizes[number]));
}

// Sets the counters of a chip's HBM.
EXPORT void systolith_note(int number, const MemoryStats* stats) { chip().note(number, *stats); }

// Makes all jobs that have not begun, and all later ones, fail.
EXPORT void systolith_close(const char* reason) {
    for (Queue& queue : chip().queues) queue.close({kCancelled, reason});
}
