// The system, the registers at the pins of the SDRAM, and the SDRAM, whose clock is inverted.
module simulated_board #(parameter PERIOD_PS = 40000) (
  input clk,
  input rst,
  input line_in,
  output line_out,
  output interrupt,
  output [3:0] violation
);
  wire enable, drive;
  wire [3:0] command;
  wire [1:0] bank, mask;
  wire [12:0] address;
  wire [15:0] data, bus;
  reg [15:0] data_in;
  reg [38:0] pins = {1'b0, 4'd15, 34'd0};
  always @(posedge clk) begin
    pins <= {enable, command, bank, address, mask, data, drive};
    data_in <= bus;
  end
  serial_system system (
    .clk(clk), .rst(rst), .line_in(line_in), .line_out(line_out), .interrupt(interrupt),
    .sdram__enable(enable), .sdram__command(command), .sdram__bank(bank),
    .sdram__address(address), .sdram__mask(mask), .sdram__data(data), .sdram__drive(drive),
    .sdram__data_in(data_in));
  sdram #(.PERIOD_PS(PERIOD_PS)) memory (
    .clk(~clk), .enable(pins[38]), .command(pins[37:34]), .bank(pins[33:32]),
    .address(pins[31:19]), .mask(pins[18:17]), .data(pins[16:1]), .drive(pins[0]),
    .bus(bus), .violation(violation));
endmodule
