// Credits of a link whose buffers have 4 places, against the buffers at its other end: the numbers
// of flits that were sent, that have left the buffers, and that left them in the last report.
module proof (
    input clk,
    input send, channel, heard,
    input [1:0] leaves,       // a flit leaves the buffer of this channel, if there is one
    input [2:0] told_0, told_1,
    output good
);
    reg [2:0] sent_0 = 0, sent_1 = 0, left_0 = 0, left_1 = 0, known_0 = 0, known_1 = 0;
    wire [1:0] free;
    wire [2:0] used_0, used_1, freed_0, freed_1;
    wire owed, wrong;
    wire sends = send & free[channel];
    // A report is one of the totals since the last report that was heard.
    wire [2:0] new_0 = told_0 - known_0, new_1 = told_1 - known_1;
    wire [2:0] most_0 = left_0 - known_0, most_1 = left_1 - known_1;
    wire hears = heard & new_0 <= most_0 & new_1 <= most_1;

    credits credits (
        .clk(clk), .rst(1'b0), .send(sends), .channel(channel), .heard(hears),
        .freed({told_1, told_0}), .free(free), .owed(owed), .wrong(wrong),
        .used_0(used_0), .used_1(used_1), .freed_0(freed_0), .freed_1(freed_1));

    always @(posedge clk) begin
        if (sends & ~channel) sent_0 <= sent_0 + 1;
        if (sends & channel) sent_1 <= sent_1 + 1;
        if (leaves[0] & left_0 != sent_0) left_0 <= left_0 + 1;
        if (leaves[1] & left_1 != sent_1) left_1 <= left_1 + 1;
        if (hears) begin
            known_0 <= told_0;
            known_1 <= told_1;
        end
    end

    wire [2:0] open_0 = sent_0 - known_0, open_1 = sent_1 - known_1;
    wire [2:0] stored_0 = sent_0 - left_0, stored_1 = sent_1 - left_1;
    assign good =
        // No buffer overflows; no credit is lost, and none comes twice.
        stored_0 <= 4 & stored_1 <= 4 & ~wrong
        & used_0 == open_0 & used_1 == open_1 & free == {open_1 < 4, open_0 < 4}
        & owed == (open_0 != 0 | open_1 != 0)
        // Invariants.
        & open_0 <= 4 & open_1 <= 4 & most_0 <= open_0 & most_1 <= open_1
        & freed_0 == known_0 & freed_1 == known_1;
endmodule
