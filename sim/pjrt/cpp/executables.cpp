// The API's functions for compiled programs.
#include "functions.hpp"

#include <cstring>
#include <memory>

namespace systolith::pjrt {

void Executable::fill(const Job& job) {
    name = job.name;
    fingerprint = job.fingerprint;
    program = job.program;
    assignment = job.assignment;
    const int64_t* next = job.answer.data();
    id = *next++;
    replicas = size_t(*next++);
    partitions = size_t(*next++);
    code_bytes = *next++;
    for (int64_t left = *next++; left > 0; --left) devices.push_back(chip().device(int(*next++)));
    for (int64_t left = *next++; left > 0; --left) donated.push_back(size_t(*next++));
    for (int64_t left = *next++; left > 0; --left) {
        output_types.push_back(int(*next++));
        int64_t rank = *next++;
        output_dims.emplace_back(next, next + rank);
        flat_dims.insert(flat_dims.end(), next, next + rank);
        ranks.push_back(size_t(rank));
        next += rank;
    }
    kinds.assign(output_types.size(), "device");
    kind_sizes.assign(output_types.size(), std::strlen("device"));
}

namespace {

Error* compile(Client_Compile_Args* args) {
    auto job = chip().job(kCompile, chip().next_id++, std::make_shared<Completion>());
    const Program& program = *args->program;
    job->owned.assign(program.code, program.code + program.code_size);
    job->data = job->owned.data();
    job->bytes = int64_t(job->owned.size());
    job->more.assign(args->compile_options, args->compile_options_size);
    chip().queues[1].push(job);
    Status status = job->completion->wait();
    if (!status.ok()) {
        // If the wait was interrupted, the program is unloaded as soon as it is compiled.
        job->completion->on_ready([id = job->target](const Status& end) {
            if (end.ok()) chip().simulate(chip().job(kUnload, id, nullptr));
        });
        return error_of(status);
    }
    auto made = std::make_unique<Executable>();
    made->fill(*job);
    args->executable = made.release();
    return nullptr;
}

// Returns the indices of the arguments that a call donates.
std::vector<size_t> donated(const Executable& executable, const ExecuteOptions* options) {
    std::vector<size_t> given;
    for (size_t index : executable.donated) {
        bool kept = false;
        for (size_t number = 0; options && number < options->num_non_donatable_input_indices;
             ++number)
            kept |= options->non_donatable_input_indices[number] == int64_t(index);
        if (!kept) given.push_back(index);
    }
    return given;
}

Error* execute(LoadedExecutable_Execute_Args* args) {
    Executable& executable = *args->executable;
    if (executable.deleted) return refuse(kInvalidArgument, "the program has been deleted");
    size_t outputs = executable.output_types.size();
    auto completion = std::make_shared<Completion>();
    auto job = chip().job(kExecute, executable.id, completion);
    std::vector<size_t> given = donated(executable, args->options);
    job->numbers = {int64_t(args->num_devices), int64_t(args->num_args), int64_t(outputs),
                    int64_t(given.size())};
    job->numbers.insert(job->numbers.end(), given.begin(), given.end());
    for (size_t number = 0; number < args->num_devices; ++number)
        for (size_t index = 0; index < args->num_args; ++index) {
            Buffer* buffer = args->argument_lists[number][index];
            if (buffer->deleted)
                return refuse(kInvalidArgument, "argument " + std::to_string(index) +
                                                    " has been deleted or donated");
            job->numbers.push_back(buffer->id);
        }
    std::vector<std::unique_ptr<Buffer>> made;
    for (size_t number = 0; number < args->num_devices; ++number) {
        Device* device = args->execute_device ? args->execute_device : executable.devices[number];
        for (size_t index = 0; index < outputs; ++index) {
            made.push_back(std::make_unique<Buffer>(device, executable.output_types[index],
                                                    executable.output_dims[index], completion));
            job->numbers.push_back(made.back()->id);
        }
    }
    chip().simulate(std::move(job));
    for (size_t number = 0; number < made.size(); ++number)
        args->output_lists[number / outputs][number % outputs] = made[number].release();
    if (args->device_complete_events)
        for (size_t number = 0; number < args->num_devices; ++number)
            args->device_complete_events[number] = event_of(completion);
    for (size_t index : given)
        for (size_t number = 0; number < args->num_devices; ++number)
            args->argument_lists[number][index]->release();
    return nullptr;
}

Error* executable_destroy(Executable_Destroy_Args* args) {
    args->executable->drop();
    return nullptr;
}

Error* loaded_destroy(LoadedExecutable_Destroy_Args* args) {
    args->executable->unload();
    args->executable->drop();
    return nullptr;
}

Error* loaded_delete(LoadedExecutable_Delete_Args* args) {
    args->executable->unload();
    return nullptr;
}

Error* loaded_is_deleted(LoadedExecutable_IsDeleted_Args* args) {
    args->is_deleted = args->executable->deleted;
    return nullptr;
}

Error* loaded_get_executable(LoadedExecutable_GetExecutable_Args* args) {
    ++args->loaded_executable->references;
    args->executable = args->loaded_executable;
    return nullptr;
}

Error* loaded_devices(LoadedExecutable_AddressableDevices_Args* args) {
    args->addressable_devices = args->executable->devices.data();
    args->num_addressable_devices = args->executable->devices.size();
    return nullptr;
}

Error* loaded_assignment(LoadedExecutable_GetDeviceAssignment_Args* args) {
    args->serialized_bytes = args->executable->assignment.data();
    args->serialized_bytes_size = args->executable->assignment.size();
    args->serialized_device_assignment = args->executable;
    args->serialized_device_assignment_deleter = [](void*) {};
    return nullptr;
}

Error* loaded_fingerprint(LoadedExecutable_Fingerprint_Args* args) {
    args->executable_fingerprint = args->executable->fingerprint.data();
    args->executable_fingerprint_size = args->executable->fingerprint.size();
    return nullptr;
}

Error* executable_fingerprint(Executable_Fingerprint_Args* args) {
    args->executable_fingerprint = args->executable->fingerprint.data();
    args->executable_fingerprint_size = args->executable->fingerprint.size();
    return nullptr;
}

Error* executable_name(Executable_Name_Args* args) {
    args->executable_name = args->executable->name.data();
    args->executable_name_size = args->executable->name.size();
    return nullptr;
}

Error* executable_replicas(Executable_NumReplicas_Args* args) {
    args->num_replicas = args->executable->replicas;
    return nullptr;
}

Error* executable_partitions(Executable_NumPartitions_Args* args) {
    args->num_partitions = args->executable->partitions;
    return nullptr;
}

Error* executable_outputs(Executable_NumOutputs_Args* args) {
    args->num_outputs = args->executable->output_types.size();
    return nullptr;
}

Error* executable_code_size(Executable_SizeOfGeneratedCodeInBytes_Args* args) {
    args->size_in_bytes = args->executable->code_bytes;
    return nullptr;
}

Error* executable_output_types(Executable_OutputElementTypes_Args* args) {
    args->output_types = args->executable->output_types.data();
    args->num_output_types = args->executable->output_types.size();
    return nullptr;
}

Error* executable_output_dims(Executable_OutputDimensions_Args* args) {
    args->num_outputs = args->executable->ranks.size();
    args->dims = args->executable->flat_dims.data();
    args->dim_sizes = args->executable->ranks.data();
    return nullptr;
}

Error* executable_output_kinds(Executable_OutputMemoryKinds_Args* args) {
    args->num_outputs = args->executable->kinds.size();
    args->memory_kinds = args->executable->kinds.data();
    args->memory_kind_sizes = args->executable->kind_sizes.data();
    return nullptr;
}

// JAX calls this twice: without a buffer for the size, then with one for the text.
Error* executable_program(Executable_OptimizedProgram_Args* args) {
    Program& program = *args->program;
    const std::string& text = args->executable->program;
    if (program.code) std::memcpy(program.code, text.data(), text.size());
    program.code_size = text.size();
    program.format = "mlir";
    program.format_size = std::strlen(program.format);
    return nullptr;
}

}  // namespace

void add_executables(Api& api) {
    put<compile>(api, Index::Client_Compile);
    put<execute>(api, Index::LoadedExecutable_Execute);
    put<loaded_destroy>(api, Index::LoadedExecutable_Destroy);
    put<loaded_delete>(api, Index::LoadedExecutable_Delete);
    put<loaded_is_deleted>(api, Index::LoadedExecutable_IsDeleted);
    put<loaded_get_executable>(api, Index::LoadedExecutable_GetExecutable);
    put<loaded_devices>(api, Index::LoadedExecutable_AddressableDevices);
    put<loaded_assignment>(api, Index::LoadedExecutable_GetDeviceAssignment);
    put<loaded_fingerprint>(api, Index::LoadedExecutable_Fingerprint);
    put<executable_destroy>(api, Index::Executable_Destroy);
    put<executable_fingerprint>(api, Index::Executable_Fingerprint);
    put<executable_name>(api, Index::Executable_Name);
    put<executable_replicas>(api, Index::Executable_NumReplicas);
    put<executable_partitions>(api, Index::Executable_NumPartitions);
    put<executable_outputs>(api, Index::Executable_NumOutputs);
    put<executable_code_size>(api, Index::Executable_SizeOfGeneratedCodeInBytes);
    put<executable_output_types>(api, Index::Executable_OutputElementTypes);
    put<executable_output_dims>(api, Index::Executable_OutputDimensions);
    put<executable_output_kinds>(api, Index::Executable_OutputMemoryKinds);
    put<executable_program>(api, Index::Executable_OptimizedProgram);
}

}  // namespace systolith::pjrt
