// The part of the PJRT C API, version 0.90, that the plugin implements.
//
// Each function has one struct: JAX fills in the arguments of a call, and the function fills in its
// results. Names are those of the API without the prefix PJRT_. The order and types of the fields
// are the binary interface; verif/sim/pjrt/test_api.py compares them with the public header.
#pragma once

#include <cstddef>
#include <cstdint>

namespace systolith::pjrt {

constexpr int kMajor = 0;
constexpr int kMinor = 90;

// Types of the API's opaque pointers, defined in objects.hpp. A device and its description are one
// object. So are a client and its topology, and a loaded executable and its executable.
struct Error;
struct Event;
struct Client;
struct Device;
struct Memory;
struct Buffer;
struct Executable;

struct Head {
    size_t struct_size;
    void* extension_start;
};

enum Code : int {
    kCancelled = 1,
    kInvalidArgument = 3,
    kResourceExhausted = 8,
    kFailedPrecondition = 9,
    kUnimplemented = 12,
    kInternal = 13,
};

// Bytes of an element, by the API's number of its type.
constexpr size_t kElementBytes[] = {0, 1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8, 2, 8, 16, 1, 1, 1, 1, 1};

struct NamedValue {
    Head head;
    const char* name;
    size_t name_size;
    int type;
    union {
        const char* string_value;
        int64_t int64_value;
        const int64_t* int64_array_value;
    };
    size_t value_size;
};
constexpr int kNamedString = 0;
constexpr int kNamedInt = 1;
constexpr int kNamedInts = 2;

struct Program {
    Head head;
    char* code;
    size_t code_size;
    const char* format;
    size_t format_size;
};

// Layout of an array: by tiles (type 0) or by strides (type 1, with other fields).
struct MemoryLayout {
    Head head;
    struct {
        Head head;
        const int64_t* minor_to_major;
        size_t minor_to_major_size;
        const int64_t* tile_dims;
        const size_t* tile_dim_sizes;
        size_t num_tiles;
    } tiled;
    int type;
};

struct OptionalCount {
    int64_t value;
    bool is_set;
};

struct ExecuteOptions {
    Head head;
    void* callbacks[2];
    size_t num_callbacks[2];
    int launch_id;
    const int64_t* non_donatable_input_indices;
    size_t num_non_donatable_input_indices;
};

struct Error_Destroy_Args {
    Head head;
    Error* error;
};
struct Error_Message_Args {
    Head head;
    const Error* error;
    const char* message;
    size_t message_size;
};
struct Error_GetCode_Args {
    Head head;
    const Error* error;
    int code;
};
struct Plugin_Attributes_Args {
    Head head;
    const NamedValue* attributes;
    size_t num_attributes;
};
struct Event_Destroy_Args {
    Head head;
    Event* event;
};
struct Event_IsReady_Args {
    Head head;
    Event* event;
    bool is_ready;
};
struct Event_Error_Args {
    Head head;
    Event* event;
};
struct Event_Await_Args {
    Head head;
    Event* event;
};
struct Event_OnReady_Args {
    Head head;
    Event* event;
    void (*callback)(Error*, void*);
    void* user_arg;
};
struct Client_Create_Args {
    Head head;
    const NamedValue* create_options;
    size_t num_options;
    void* key_values[4];
    Client* client;
    void* more_key_values[2];
};
struct Client_Destroy_Args {
    Head head;
    Client* client;
};
struct Client_PlatformName_Args {
    Head head;
    Client* client;
    const char* platform_name;
    size_t platform_name_size;
};
struct Client_ProcessIndex_Args {
    Head head;
    Client* client;
    int process_index;
};
struct Client_PlatformVersion_Args {
    Head head;
    Client* client;
    const char* platform_version;
    size_t platform_version_size;
};
struct Client_TopologyDescription_Args {
    Head head;
    Client* client;
    Client* topology;
};
struct Client_Devices_Args {
    Head head;
    Client* client;
    Device* const* devices;
    size_t num_devices;
};
struct Client_AddressableDevices_Args {
    Head head;
    Client* client;
    Device* const* addressable_devices;
    size_t num_addressable_devices;
};
struct Client_LookupDevice_Args {
    Head head;
    Client* client;
    int id;
    Device* device;
};
struct Client_LookupAddressableDevice_Args {
    Head head;
    Client* client;
    int local_hardware_id;
    Device* addressable_device;
};
struct Client_AddressableMemories_Args {
    Head head;
    Client* client;
    Memory* const* addressable_memories;
    size_t num_addressable_memories;
};
struct Client_Compile_Args {
    Head head;
    Client* client;
    const Program* program;
    const char* compile_options;
    size_t compile_options_size;
    Executable* executable;
};
struct Client_DefaultDeviceAssignment_Args {
    Head head;
    Client* client;
    int num_replicas;
    int num_partitions;
    size_t default_assignment_size;
    int* default_assignment;
};
struct Client_BufferFromHostBuffer_Args {
    Head head;
    Client* client;
    const void* data;
    int type;
    const int64_t* dims;
    size_t num_dims;
    const int64_t* byte_strides;
    size_t num_byte_strides;
    int host_buffer_semantics;
    Device* device;
    Memory* memory;
    const void* device_layout;
    Event* done_with_host_buffer;
    Buffer* buffer;
};
struct DeviceDescription_Id_Args {
    Head head;
    Device* device_description;
    int id;
};
struct DeviceDescription_ProcessIndex_Args {
    Head head;
    Device* device_description;
    int process_index;
};
struct DeviceDescription_Attributes_Args {
    Head head;
    Device* device_description;
    size_t num_attributes;
    const NamedValue* attributes;
};
struct DeviceDescription_Kind_Args {
    Head head;
    Device* device_description;
    const char* device_kind;
    size_t device_kind_size;
};
struct DeviceDescription_DebugString_Args {
    Head head;
    Device* device_description;
    const char* debug_string;
    size_t debug_string_size;
};
struct DeviceDescription_ToString_Args {
    Head head;
    Device* device_description;
    const char* to_string;
    size_t to_string_size;
};
struct Device_GetDescription_Args {
    Head head;
    Device* device;
    Device* device_description;
};
struct Device_IsAddressable_Args {
    Head head;
    Device* device;
    bool is_addressable;
};
struct Device_LocalHardwareId_Args {
    Head head;
    Device* device;
    int local_hardware_id;
};
struct Device_AddressableMemories_Args {
    Head head;
    Device* device;
    Memory* const* memories;
    size_t num_memories;
};
struct Device_DefaultMemory_Args {
    Head head;
    Device* device;
    Memory* memory;
};
struct Device_MemoryStats_Args {
    Head head;
    Device* device;
    int64_t bytes_in_use;
    OptionalCount peak_bytes_in_use;
    OptionalCount num_allocs;
    OptionalCount largest_alloc_size;
    OptionalCount bytes_limit;
    OptionalCount bytes_reserved;
    OptionalCount peak_bytes_reserved;
    OptionalCount bytes_reservable_limit;
    OptionalCount largest_free_block_bytes;
    OptionalCount pool_bytes;
    OptionalCount peak_pool_bytes;
};
struct Memory_Id_Args {
    Head head;
    Memory* memory;
    int id;
};
struct Memory_Kind_Args {
    Head head;
    Memory* memory;
    const char* kind;
    size_t kind_size;
};
struct Memory_Kind_Id_Args {
    Head head;
    Memory* memory;
    int kind_id;
};
struct Memory_DebugString_Args {
    Head head;
    Memory* memory;
    const char* debug_string;
    size_t debug_string_size;
};
struct Memory_ToString_Args {
    Head head;
    Memory* memory;
    const char* to_string;
    size_t to_string_size;
};
struct Memory_AddressableByDevices_Args {
    Head head;
    Memory* memory;
    Device* const* devices;
    size_t num_devices;
};
struct Executable_Destroy_Args {
    Head head;
    Executable* executable;
};
struct Executable_Name_Args {
    Head head;
    Executable* executable;
    const char* executable_name;
    size_t executable_name_size;
};
struct Executable_NumReplicas_Args {
    Head head;
    Executable* executable;
    size_t num_replicas;
};
struct Executable_NumPartitions_Args {
    Head head;
    Executable* executable;
    size_t num_partitions;
};
struct Executable_NumOutputs_Args {
    Head head;
    Executable* executable;
    size_t num_outputs;
};
struct Executable_SizeOfGeneratedCodeInBytes_Args {
    Head head;
    Executable* executable;
    int64_t size_in_bytes;
};
struct Executable_Fingerprint_Args {
    Head head;
    Executable* executable;
    const char* executable_fingerprint;
    size_t executable_fingerprint_size;
};
struct Executable_OutputElementTypes_Args {
    Head head;
    Executable* executable;
    const int* output_types;
    size_t num_output_types;
};
struct Executable_OutputDimensions_Args {
    Head head;
    Executable* executable;
    size_t num_outputs;
    const int64_t* dims;
    const size_t* dim_sizes;
};
struct Executable_OutputMemoryKinds_Args {
    Head head;
    Executable* executable;
    size_t num_outputs;
    const char* const* memory_kinds;
    const size_t* memory_kind_sizes;
};
struct Executable_OptimizedProgram_Args {
    Head head;
    Executable* executable;
    Program* program;
};
struct LoadedExecutable_Destroy_Args {
    Head head;
    Executable* executable;
};
struct LoadedExecutable_GetExecutable_Args {
    Head head;
    Executable* loaded_executable;
    Executable* executable;
};
struct LoadedExecutable_GetDeviceAssignment_Args {
    Head head;
    Executable* executable;
    const char* serialized_bytes;
    size_t serialized_bytes_size;
    void* serialized_device_assignment;
    void (*serialized_device_assignment_deleter)(void*);
};
struct LoadedExecutable_AddressableDevices_Args {
    Head head;
    Executable* executable;
    Device* const* addressable_devices;
    size_t num_addressable_devices;
};
struct LoadedExecutable_Delete_Args {
    Head head;
    Executable* executable;
};
struct LoadedExecutable_IsDeleted_Args {
    Head head;
    Executable* executable;
    bool is_deleted;
};
struct LoadedExecutable_Fingerprint_Args {
    Head head;
    Executable* executable;
    const char* executable_fingerprint;
    size_t executable_fingerprint_size;
};
struct LoadedExecutable_Execute_Args {
    Head head;
    Executable* executable;
    const ExecuteOptions* options;
    Buffer* const* const* argument_lists;
    size_t num_devices;
    size_t num_args;
    Buffer** const* output_lists;
    Event** device_complete_events;
    Device* execute_device;
};
struct Buffer_Destroy_Args {
    Head head;
    Buffer* buffer;
};
struct Buffer_ElementType_Args {
    Head head;
    Buffer* buffer;
    int type;
};
struct Buffer_Dimensions_Args {
    Head head;
    Buffer* buffer;
    const int64_t* dims;
    size_t num_dims;
};
struct Buffer_UnpaddedDimensions_Args {
    Head head;
    Buffer* buffer;
    const int64_t* unpadded_dims;
    size_t num_dims;
};
struct Buffer_DynamicDimensionIndices_Args {
    Head head;
    Buffer* buffer;
    const size_t* dynamic_dim_indices;
    size_t num_dynamic_dims;
};
struct Buffer_GetMemoryLayout_Args {
    Head head;
    Buffer* buffer;
    MemoryLayout layout;
};
struct Buffer_ToHostBuffer_Args {
    Head head;
    Buffer* src;
    const MemoryLayout* host_layout;
    void* dst;
    size_t dst_size;
    Event* event;
};
struct Buffer_OnDeviceSizeInBytes_Args {
    Head head;
    Buffer* buffer;
    size_t on_device_size_in_bytes;
};
struct Buffer_Delete_Args {
    Head head;
    Buffer* buffer;
};
struct Buffer_IsDeleted_Args {
    Head head;
    Buffer* buffer;
    bool is_deleted;
};
struct Buffer_CopyToDevice_Args {
    Head head;
    Buffer* buffer;
    Device* dst_device;
    Buffer* dst_buffer;
};
struct Buffer_CopyToMemory_Args {
    Head head;
    Buffer* buffer;
    Memory* dst_memory;
    Buffer* dst_buffer;
};
struct Buffer_IsOnCpu_Args {
    Head head;
    Buffer* buffer;
    bool is_on_cpu;
};
struct Buffer_Device_Args {
    Head head;
    Buffer* buffer;
    Device* device;
};
struct Buffer_Memory_Args {
    Head head;
    Buffer* buffer;
    Memory* memory;
};
struct Buffer_ReadyEvent_Args {
    Head head;
    Buffer* buffer;
    Event* event;
};
struct TopologyDescription_PlatformName_Args {
    Head head;
    const Client* topology;
    const char* platform_name;
    size_t platform_name_size;
};
struct TopologyDescription_PlatformVersion_Args {
    Head head;
    const Client* topology;
    const char* platform_version;
    size_t platform_version_size;
};
struct TopologyDescription_GetDeviceDescriptions_Args {
    Head head;
    const Client* topology;
    Device* const* descriptions;
    size_t num_descriptions;
};
struct TopologyDescription_Attributes_Args {
    Head head;
    const Client* topology;
    const NamedValue* attributes;
    size_t num_attributes;
};
struct ExecuteContext_Create_Args {
    Head head;
    void* context;
};
struct ExecuteContext_Destroy_Args {
    Head head;
    void* context;
};

using Function = void (*)();

// Indices in the API's table of the functions that the plugin implements.
enum Index : size_t {
    Error_Destroy = 0,
    Error_Message = 1,
    Error_GetCode = 2,
    Plugin_Initialize = 3,
    Plugin_Attributes = 4,
    Event_Destroy = 5,
    Event_IsReady = 6,
    Event_Error = 7,
    Event_Await = 8,
    Event_OnReady = 9,
    Client_Create = 10,
    Client_Destroy = 11,
    Client_PlatformName = 12,
    Client_ProcessIndex = 13,
    Client_PlatformVersion = 14,
    Client_Devices = 15,
    Client_AddressableDevices = 16,
    Client_LookupDevice = 17,
    Client_LookupAddressableDevice = 18,
    Client_AddressableMemories = 19,
    Client_Compile = 20,
    Client_DefaultDeviceAssignment = 21,
    Client_BufferFromHostBuffer = 22,
    DeviceDescription_Id = 23,
    DeviceDescription_ProcessIndex = 24,
    DeviceDescription_Attributes = 25,
    DeviceDescription_Kind = 26,
    DeviceDescription_DebugString = 27,
    DeviceDescription_ToString = 28,
    Device_GetDescription = 29,
    Device_IsAddressable = 30,
    Device_LocalHardwareId = 31,
    Device_AddressableMemories = 32,
    Device_DefaultMemory = 33,
    Device_MemoryStats = 34,
    Memory_Id = 35,
    Memory_Kind = 36,
    Memory_DebugString = 37,
    Memory_ToString = 38,
    Memory_AddressableByDevices = 39,
    Executable_Destroy = 40,
    Executable_Name = 41,
    Executable_NumReplicas = 42,
    Executable_NumPartitions = 43,
    Executable_NumOutputs = 44,
    Executable_SizeOfGeneratedCodeInBytes = 45,
    Executable_OutputMemoryKinds = 47,
    Executable_OptimizedProgram = 48,
    LoadedExecutable_Destroy = 50,
    LoadedExecutable_GetExecutable = 51,
    LoadedExecutable_AddressableDevices = 52,
    LoadedExecutable_Delete = 53,
    LoadedExecutable_IsDeleted = 54,
    LoadedExecutable_Execute = 55,
    LoadedExecutable_Fingerprint = 57,
    Buffer_Destroy = 58,
    Buffer_ElementType = 59,
    Buffer_Dimensions = 60,
    Buffer_UnpaddedDimensions = 61,
    Buffer_DynamicDimensionIndices = 62,
    Buffer_GetMemoryLayout = 63,
    Buffer_OnDeviceSizeInBytes = 64,
    Buffer_Device = 65,
    Buffer_Memory = 66,
    Buffer_Delete = 67,
    Buffer_IsDeleted = 68,
    Buffer_CopyToDevice = 69,
    Buffer_ToHostBuffer = 70,
    Buffer_IsOnCpu = 71,
    Buffer_ReadyEvent = 72,
    TopologyDescription_Destroy = 83,
    TopologyDescription_PlatformName = 84,
    TopologyDescription_PlatformVersion = 85,
    TopologyDescription_GetDeviceDescriptions = 86,
    TopologyDescription_Attributes = 88,
    Executable_OutputElementTypes = 90,
    Executable_OutputDimensions = 91,
    Buffer_CopyToMemory = 92,
    Executable_Fingerprint = 94,
    Client_TopologyDescription = 95,
    Memory_Kind_Id = 97,
    ExecuteContext_Create = 98,
    ExecuteContext_Destroy = 99,
    LoadedExecutable_GetDeviceAssignment = 117,
    count = 128,
};

struct Api {
    Head head;
    struct {
        Head head;
        int major_version;
        int minor_version;
    } version;
    Function functions[Index::count];
};

}  // namespace systolith::pjrt
