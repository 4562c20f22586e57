// The API's functions for buffers and events.
#include "functions.hpp"

#include <cstring>
#include <memory>

namespace systolith::pjrt {
namespace {

// Events

Error* event_destroy(Event_Destroy_Args* args) {
    delete args->event;
    return nullptr;
}

Error* event_is_ready(Event_IsReady_Args* args) {
    args->is_ready = args->event->completion->ready();
    return nullptr;
}

Error* event_await(Event_Await_Args* args) {
    Completion& completion = *args->event->completion;
    Status status = completion.wait();
    // After an interrupted wait JAX may free the array: complete the event, so no job writes to it.
    if (status.code == kCancelled && args->event->writes) completion.finish(status);
    return error_of(status);
}

Error* event_error(Event_Error_Args* args) {
    if (!args->event->completion->ready())
        return refuse(kFailedPrecondition, "the event is not ready yet");
    return error_of(args->event->completion->wait());
}

Error* event_on_ready(Event_OnReady_Args* args) {
    args->event->completion->on_ready(
        [callback = args->callback, user = args->user_arg](const Status& status) {
            callback(error_of(status), user);
        });
    return nullptr;
}

// Transfers

// Copies the elements of an array with any strides to `to`, in C order; advances `to`.
void gather(const char* from, const int64_t* dims, const int64_t* strides, size_t rank,
            size_t element, char*& to) {
    if (rank == 0) {
        std::memcpy(to, from, element);
        to += element;
        return;
    }
    if (rank == 1 && strides[0] == int64_t(element)) {
        std::memcpy(to, from, size_t(dims[0]) * element);
        to += size_t(dims[0]) * element;
        return;
    }
    for (int64_t index = 0; index < dims[0]; ++index)
        gather(from + index * strides[0], dims + 1, strides + 1, rank - 1, element, to);
}

Error* unsupported_type(int type) {
    const char* advice = type == 5 || type == 9 || type == 12
                             ? "; leave jax_enable_x64 off, or convert to 32 bits"
                             : type == 10 ? "; use bfloat16 or float32" : "";
    static const char* names[] = {"invalid", "pred", "s8",  "s16",  "s32", "s64", "u8", "u16",
                                  "u32",     "u64",  "f16", "f32",  "f64", "bf16", "c64", "c128"};
    std::string name = type >= 0 && type < 16 ? names[type] : "number " + std::to_string(type);
    return refuse(kUnimplemented, "arrays of type " + name + " are not supported" + advice);
}

bool supported(int type) {
    switch (type) {
    // Predicates, integers of 8 to 32 bits, fp32 and bf16.
    case 1: case 2: case 3: case 4: case 6: case 7: case 8: case 11: case 13:
        return true;
    default:
        return false;
    }
}

Error* buffer_from_host(Client_BufferFromHostBuffer_Args* args) {
    if (!supported(args->type)) return unsupported_type(args->type);
    std::vector<int64_t> dims(args->dims, args->dims + args->num_dims);
    Device* device = args->memory ? args->memory->device : args->device;
    auto completion = std::make_shared<Completion>();
    auto buffer = std::make_unique<Buffer>(device, args->type, dims, completion);
    auto job = chip().job(kUpload, buffer->id, completion);
    job->numbers = {device->id, args->type};
    job->numbers.insert(job->numbers.end(), dims.begin(), dims.end());
    // Copies the elements, because the caller may change its array after the call.
    job->owned.resize(buffer->bytes());
    if (job->owned.size()) {
        if (args->num_byte_strides) {
            char* to = job->owned.data();
            gather(static_cast<const char*>(args->data), args->dims, args->byte_strides,
                   args->num_dims, kElementBytes[args->type], to);
        } else {
            std::memcpy(job->owned.data(), args->data, job->owned.size());
        }
    }
    job->data = job->owned.data();
    job->bytes = int64_t(job->owned.size());
    auto copied = std::make_shared<Completion>();
    copied->finish({});
    chip().simulate(std::move(job));
    args->done_with_host_buffer = event_of(copied);
    args->buffer = buffer.release();
    return nullptr;
}

bool is_row_major(const MemoryLayout* layout, size_t rank) {
    if (!layout || layout->type != 0 || layout->tiled.minor_to_major_size != rank) return !layout;
    for (size_t number = 0; number < rank; ++number)
        if (layout->tiled.minor_to_major[number] != int64_t(rank - 1 - number)) return false;
    return true;
}

Error* buffer_to_host(Buffer_ToHostBuffer_Args* args) {
    Buffer* buffer = args->src;
    if (!is_row_major(args->host_layout, buffer->dims.size()))
        return refuse(kUnimplemented, "the array on the host must have its elements in C order");
    if (!args->dst) {
        args->dst_size = buffer->bytes();
        return nullptr;
    }
    if (buffer->deleted)
        return refuse(kInvalidArgument, "the array has been deleted or donated");
    if (args->dst_size < buffer->bytes())
        return refuse(kInvalidArgument, "the array on the host is too small");
    auto job = chip().job(kDownload, buffer->id, std::make_shared<Completion>());
    job->owned.resize(buffer->bytes());
    job->data = job->owned.data();
    job->bytes = int64_t(job->owned.size());
    job->to = static_cast<char*>(args->dst);
    args->event = new Event{job->completion, true};
    chip().simulate(std::move(job));
    return nullptr;
}

// A copy of a value on the same chip is another name of it, because the cores of a chip share HBM
// and values are immutable.
Error* share(Buffer* buffer, Device* device, Buffer*& copy) {
    if (buffer->deleted)
        return refuse(kInvalidArgument, "the array has been deleted or donated");
    auto completion = std::make_shared<Completion>();
    auto made = std::make_unique<Buffer>(device, buffer->type, buffer->dims, completion);
    auto job = chip().job(kShare, made->id, completion);
    job->numbers = {buffer->id, device->id};
    chip().simulate(std::move(job));
    copy = made.release();
    return nullptr;
}

Error* buffer_copy_to_device(Buffer_CopyToDevice_Args* args) {
    return share(args->buffer, args->dst_device, args->dst_buffer);
}

Error* buffer_copy_to_memory(Buffer_CopyToMemory_Args* args) {
    return share(args->buffer, args->dst_memory->device, args->dst_buffer);
}

// Properties of a buffer

Error* buffer_destroy(Buffer_Destroy_Args* args) {
    delete args->buffer;
    return nullptr;
}

Error* buffer_element_type(Buffer_ElementType_Args* args) {
    args->type = args->buffer->type;
    return nullptr;
}

Error* buffer_dimensions(Buffer_Dimensions_Args* args) {
    args->dims = args->buffer->dims.data();
    args->num_dims = args->buffer->dims.size();
    return nullptr;
}

Error* buffer_unpadded_dimensions(Buffer_UnpaddedDimensions_Args* args) {
    args->unpadded_dims = args->buffer->dims.data();
    args->num_dims = args->buffer->dims.size();
    return nullptr;
}

Error* buffer_dynamic_dimensions(Buffer_DynamicDimensionIndices_Args* args) {
    args->dynamic_dim_indices = nullptr;
    args->num_dynamic_dims = 0;
    return nullptr;
}

Error* buffer_memory_layout(Buffer_GetMemoryLayout_Args* args) {
    MemoryLayout& layout = args->layout;
    layout.tiled = {};
    layout.tiled.head.struct_size = sizeof layout.tiled;
    layout.tiled.minor_to_major = args->buffer->minor_to_major.data();
    layout.tiled.minor_to_major_size = args->buffer->minor_to_major.size();
    layout.type = 0;
    return nullptr;
}

Error* buffer_size(Buffer_OnDeviceSizeInBytes_Args* args) {
    args->on_device_size_in_bytes = args->buffer->bytes();
    return nullptr;
}

Error* buffer_delete(Buffer_Delete_Args* args) {
    args->buffer->release();
    return nullptr;
}

Error* buffer_is_deleted(Buffer_IsDeleted_Args* args) {
    args->is_deleted = args->buffer->deleted;
    return nullptr;
}

Error* buffer_is_on_cpu(Buffer_IsOnCpu_Args* args) {
    args->is_on_cpu = false;
    return nullptr;
}

Error* buffer_device(Buffer_Device_Args* args) {
    args->device = args->buffer->device;
    return nullptr;
}

Error* buffer_memory(Buffer_Memory_Args* args) {
    args->memory = &args->buffer->device->memory;
    return nullptr;
}

Error* buffer_ready_event(Buffer_ReadyEvent_Args* args) {
    args->event = event_of(args->buffer->ready);
    return nullptr;
}

}  // namespace

void add_buffers(Api& api) {
    put<event_destroy>(api, Index::Event_Destroy);
    put<event_is_ready>(api, Index::Event_IsReady);
    put<event_error>(api, Index::Event_Error);
    put<event_await>(api, Index::Event_Await);
    put<event_on_ready>(api, Index::Event_OnReady);
    put<buffer_from_host>(api, Index::Client_BufferFromHostBuffer);
    put<buffer_to_host>(api, Index::Buffer_ToHostBuffer);
    put<buffer_copy_to_device>(api, Index::Buffer_CopyToDevice);
    put<buffer_copy_to_memory>(api, Index::Buffer_CopyToMemory);
    put<buffer_destroy>(api, Index::Buffer_Destroy);
    put<buffer_element_type>(api, Index::Buffer_ElementType);
    put<buffer_dimensions>(api, Index::Buffer_Dimensions);
    put<buffer_unpadded_dimensions>(api, Index::Buffer_UnpaddedDimensions);
    put<buffer_dynamic_dimensions>(api, Index::Buffer_DynamicDimensionIndices);
    put<buffer_memory_layout>(api, Index::Buffer_GetMemoryLayout);
    put<buffer_size>(api, Index::Buffer_OnDeviceSizeInBytes);
    put<buffer_delete>(api, Index::Buffer_Delete);
    put<buffer_is_deleted>(api, Index::Buffer_IsDeleted);
    put<buffer_is_on_cpu>(api, Index::Buffer_IsOnCpu);
    put<buffer_device>(api, Index::Buffer_Device);
    put<buffer_memory>(api, Index::Buffer_Memory);
    put<buffer_ready_event>(api, Index::Buffer_ReadyEvent);
}

}  // namespace systolith::pjrt
